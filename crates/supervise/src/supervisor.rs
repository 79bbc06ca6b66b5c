//! A scope together with the runtime of its children.

use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use crate::child::{Child, Ctx, Supervised};
use crate::restarting::{ChildClass, RestartLoop};
use crate::runtime::{Spawn, Timer};
use crate::scope::{Key, Scope, SpawnOutcome, Unkeyed};
use crate::stop::Report;
use crate::{ChildOutput, Refused};

/// A [`Scope`] that spawns its children. Dereferences to the scope.
#[derive(Clone, Debug)]
pub struct Supervisor<R, K = Unkeyed> {
    scope: Scope<K>,
    runtime: R,
}

impl<R, K> Deref for Supervisor<R, K> {
    type Target = Scope<K>;

    fn deref(&self) -> &Scope<K> {
        &self.scope
    }
}

impl<K> Scope<K> {
    /// Combines this scope with a runtime that spawns its children.
    pub fn on<R>(&self, runtime: R) -> Supervisor<R, K> {
        Supervisor { scope: self.clone(), runtime }
    }
}

impl<R: Clone, K: Key> Supervisor<R, K> {
    /// Child scope on the same runtime.
    pub fn child<K2: Key>(&self, name: &str) -> Supervisor<R, K2> {
        self.scope.child(name).on(self.runtime.clone())
    }
}

impl<R, K: Key> Supervisor<R, K> {
    /// Returns the scope.
    pub fn scope(&self) -> &Scope<K> {
        &self.scope
    }

    /// Returns the runtime.
    pub fn runtime(&self) -> &R {
        &self.runtime
    }

    /// Starts a child without a key.
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children.
    #[track_caller]
    pub fn spawn<F>(&self, future: impl FnOnce(Ctx) -> F) -> Result<R::Handle, Refused>
    where
        F: Future<Output: ChildOutput>,
        R: Spawn<Supervised<F>>,
    {
        self.scope.wrap(future).map(|child| self.runtime.spawn(child))
    }

    /// Starts a child that listings and reports identify by `number`, like [`Scope::wrap_numbered`].
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children.
    #[track_caller]
    pub fn spawn_numbered<F>(&self, number: u64, future: impl FnOnce(Ctx) -> F) -> Result<R::Handle, Refused>
    where
        F: Future<Output: ChildOutput>,
        R: Spawn<Supervised<F>>,
    {
        self.scope.wrap_numbered(number, future).map(|child| self.runtime.spawn(child))
    }

    /// Starts a child that `key` identifies until it has ended.
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children, or has a live child with this key.
    #[track_caller]
    pub fn spawn_as<F>(&self, key: K, future: impl FnOnce(Ctx) -> F) -> Result<R::Handle, Refused>
    where
        F: Future<Output: ChildOutput>,
        R: Spawn<Supervised<F>>,
    {
        self.scope.wrap_as(key, future).map(|child| self.runtime.spawn(child))
    }

    /// Starts a child with this key unless one is live. Of concurrent callers, exactly one starts it.
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children.
    #[track_caller]
    pub fn spawn_if_absent<F>(&self, key: K, future: impl FnOnce(Ctx) -> F) -> Result<SpawnOutcome<R::Handle>, Refused>
    where
        F: Future<Output: ChildOutput>,
        R: Spawn<Supervised<F>>,
    {
        Ok(match self.scope.wrap_if_absent(key, future)? {
            SpawnOutcome::New(child) => SpawnOutcome::New(self.runtime.spawn(child)),
            SpawnOutcome::Existing(child) => SpawnOutcome::Existing(child),
        })
    }

    /// Starts a child of a class that restarts.
    ///
    /// # Errors
    /// [`Refused`] if the scope accepts no more children, or has a live child with this key.
    #[track_caller]
    pub fn spawn_kept<M, F>(&self, key: K, class: &ChildClass<M>) -> Result<Child, Refused>
    where
        R: Timer + Clone + Spawn<Supervised<RestartLoop<K, M, F, R>>>,
        M: Fn(&K, Ctx) -> F,
        F: Future<Output: ChildOutput>,
    {
        let supervised = self.scope.wrap_kept(key, class, self.runtime.clone())?;
        let child = supervised.child();
        self.runtime.spawn(supervised);
        Ok(child)
    }

    /// Like [`Scope::stop`], on this runtime.
    pub fn stop(&self, grace: Duration, abort: Duration) -> impl Future<Output = Report> + use<R, K>
    where
        R: Timer + Clone,
    {
        self.scope.stop(self.runtime.clone(), grace, abort)
    }

    /// Like [`Scope::drain`], on this runtime.
    pub fn drain(&self, deadline: Duration) -> impl Future<Output = Report> + use<R, K>
    where
        R: Timer + Clone,
    {
        self.scope.drain(self.runtime.clone(), deadline)
    }
}
