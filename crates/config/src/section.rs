//! One declaration per key: its documentation, kind, default, range, and whether a reload changes it.
//!
//! `section!` makes three things of it: the checked struct with a plain field per key, the raw struct in which a key
//! may be absent, and the list of [`Key`]s from which unknown ones are told, the documentation is tested, and
//! `SHOW CONFIG` is printed. So a key cannot exist without a default, a line of documentation and a reload class.

use super::raw::Value;
use super::setting::{Holds, Wrong};

/// What a reload (`SIGHUP`, `RELOAD`) does with a changed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// The new value holds from the reload on.
    Live,
    /// The old value holds until the process is started again.
    Restart,
}

/// Where a key may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// In its own section only: it concerns the process.
    Process,
    /// Also in `[databases.NAME]` and `[users.NAME]`, which go before.
    Pool,
}

/// A key of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name inside of its section.
    pub name: &'static str,
    /// Its documentation.
    pub doc: &'static str,
    /// Whether a reload changes it.
    pub reload: Reload,
    /// Where it may be written.
    pub scope: Scope,
    /// The kind of its values.
    pub holds: Holds,
}

/// A raw section: keys that may be set one by one.
pub(crate) trait Keys {
    /// The keys of the section, in the order of the documentation.
    fn keys(&self) -> Vec<&'static Key>;

    /// Sets a key; `None` if the section has no such key.
    fn set(&mut self, key: &str, value: &Value) -> Option<Result<(), Wrong>>;
}

/// A checked section, made of a raw one.
pub(crate) trait Settings: Default {
    type Raw: Keys + Default;

    /// The defaults with every key that was written put over them.
    fn from_raw(raw: &Self::Raw) -> Self;
}

macro_rules! read {
    ($value:expr) => {
        $crate::setting::Setting::read($value)
    };
    ($value:expr, $range:expr) => {
        $crate::setting::within($value, &$range)
    };
}
pub(crate) use read;

macro_rules! section {
    (
        $(#[$doc:meta])*
        pub struct $name:ident, raw $raw:ident {
            $($(#[doc = $key_doc:literal])+ $key:ident: $kind:ty = $default:expr
                $(, in $range:expr)? => $reload:ident $scope:ident;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name { $($(#[doc = $key_doc])+ pub $key: $kind,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $name {
            /// Every key of the section, in the order of the documentation.
            pub const KEYS: &'static [$crate::Key] = &[$($crate::Key {
                name: stringify!($key),
                doc: concat!($($key_doc, "\n"),+),
                reload: $crate::Reload::$reload,
                scope: $crate::Scope::$scope,
                holds: <$kind as $crate::setting::Setting>::HOLDS,
            },)*];

            /// Takes back what a reload cannot change.
            #[allow(dead_code, reason = "only sections of the process have such keys")]
            pub(crate) fn keep_fixed(&mut self, old: &Self) {
                $(if $crate::Reload::$reload == $crate::Reload::Restart {
                    self.$key = old.$key.clone();
                })*
            }

            /// The values, in the order of [`Self::KEYS`], as `SHOW CONFIG` prints them.
            pub fn shown(&self) -> Vec<String> {
                vec![$($crate::setting::Setting::show(&self.$key),)*]
            }
        }

        #[doc = concat!("[`", stringify!($name), "`] as written: a key that is absent leaves what was there before.")]
        #[derive(Debug, Clone, PartialEq, Default)]
        pub(crate) struct $raw { $(pub(crate) $key: Option<$kind>,)* }

        impl $raw {
            /// `base` with every key that was written put over it.
            pub(crate) fn over(&self, base: &$name) -> $name {
                $name { $($key: self.$key.clone().unwrap_or_else(|| base.$key.clone()),)* }
            }

            /// The keys that were written, and their values as `SHOW CONFIG` prints them.
            #[allow(dead_code, reason = "only sections below databases and users list what was written")]
            pub(crate) fn written(&self) -> Vec<(&'static str, String)> {
                let mut written = Vec::new();
                $(if let Some(value) = &self.$key {
                    written.push((stringify!($key), $crate::setting::Setting::show(value)));
                })*
                written
            }
        }

        impl $crate::section::Settings for $name {
            type Raw = $raw;

            fn from_raw(raw: &$raw) -> Self {
                raw.over(&Self::default())
            }
        }

        impl $crate::section::Keys for $raw {
            fn keys(&self) -> Vec<&'static $crate::Key> {
                $name::KEYS.iter().collect()
            }

            fn set(&mut self, key: &str, value: &$crate::raw::Value)
                -> Option<Result<(), $crate::setting::Wrong>> {
                match key {
                    $(stringify!($key) => {
                        Some($crate::section::read!(value $(, $range)?).map(|read| self.$key = Some(read)))
                    })*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use section;
