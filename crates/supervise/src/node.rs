//! Node of a scope in the tree of scopes, independent of the key type.

use std::fmt::Debug;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use crate::hub::Hub;
use crate::shard::{ChildChunk, ChildInfo, ChildShard, Counts, Mode};
use crate::stuck::Stuck;
use crate::sync::{Mutex, lock};

pub(crate) struct Node {
    pub(crate) hub: Arc<Hub>,
    /// Order among siblings: lower phases stop before higher ones.
    pub(crate) phase: u8,
    pub(crate) members: Arc<dyn Members>,
    tree: Mutex<Tree>,
    /// No handle to the scope is left; the node is removed when its last child has ended.
    orphaned: AtomicBool,
}

struct Tree {
    mode: Mode,
    children: Vec<Arc<Node>>,
}

/// A scope's own children, independent of the key type.
pub(crate) trait Members: Send + Sync {
    fn shards(&self) -> usize;
    fn advance(&self, mode: Mode);
    fn chunks(&self, shard: usize, from: usize, many: usize, into: &mut Vec<Arc<ChildChunk>>);
    fn live(&self) -> usize;
    fn counts(&self) -> Counts;
    /// Collects up to `most` live children in the form of a report.
    fn stuck(&self, scope: &Arc<str>, most: usize, into: &mut Vec<Stuck>);
}

pub(crate) struct ShardSet<K> {
    pub(crate) shards: Box<[Arc<ChildShard<K, RandomState>>]>,
    pub(crate) hasher: RandomState,
}

impl Node {
    pub(crate) fn new(hub: Arc<Hub>, phase: u8, members: Arc<dyn Members>) -> Arc<Self> {
        let tree = Mutex::new(Tree { mode: Mode::Open, children: Vec::new() });
        let node = Arc::new(Self { hub, phase, members, tree, orphaned: AtomicBool::new(false) });
        let weak = Arc::downgrade(&node);
        let _ = node.hub.node.set(weak);
        node
    }

    /// Adds `child` below this scope; a scope added below a stopping scope is stopping from the start.
    pub(crate) fn add_child(&self, child: Arc<Self>) {
        let mut tree = lock(&self.tree);
        child.advance(tree.mode);
        tree.children.retain(|other| !other.is_removable());
        tree.children.push(child);
    }

    pub(crate) fn orphan(&self) {
        self.orphaned.store(true, Relaxed);
    }

    fn is_removable(&self) -> bool {
        self.orphaned.load(Relaxed)
            && self.members.live() == 0
            && lock(&self.tree).children.iter().all(|c| c.is_removable())
    }

    pub(crate) fn children(&self) -> Vec<Arc<Self>> {
        let mut tree = lock(&self.tree);
        tree.children.retain(|child| !child.is_removable());
        tree.children.clone()
    }

    /// Moves this scope and all scopes below it forward to `mode`.
    pub(crate) fn advance(&self, mode: Mode) {
        let children = {
            let mut tree = lock(&self.tree);
            tree.mode = tree.mode.max(mode);
            tree.children.clone()
        };
        self.members.advance(mode);
        if let Some(limit) = &self.hub.limit
            && mode != Mode::Open
        {
            limit.wake_all();
        }
        for child in children {
            child.advance(mode);
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        lock(&self.tree).mode
    }

    /// Ready when this scope alone has no live child. Meaningful only once the scope accepts no more children.
    pub(crate) fn poll_empty(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.hub.wait(cx.waker());
        match self.members.live() {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    /// Returns the scopes of the tree in stop order: all scopes of a wave together, wave after wave.
    pub(crate) fn waves(self: &Arc<Self>) -> Vec<Vec<Arc<Self>>> {
        let mut waves = Vec::new();
        self.place(0, &mut waves);
        waves
    }

    /// Adds this tree to the waves from `first` on, its root last; returns the wave after it.
    fn place(self: &Arc<Self>, first: usize, waves: &mut Vec<Vec<Arc<Self>>>) -> usize {
        let mut children = self.children();
        children.sort_by_key(|child| child.phase);
        let mut wave = first;
        for phase in children.chunk_by(|a, b| a.phase == b.phase) {
            wave = phase.iter().map(|child| child.place(wave, waves)).max().unwrap_or(wave);
        }
        if waves.len() <= wave {
            waves.resize_with(wave + 1, Vec::new);
        }
        waves[wave].push(Arc::clone(self));
        wave + 1
    }
}

impl<K> ShardSet<K>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
{
    pub(crate) fn new(hub: &Arc<Hub>, shards: usize) -> Self {
        let (hasher, created) = (RandomState::new(), crate::clock::coarse());
        let shard = |_| Arc::new(ChildShard::new(Arc::clone(hub), hasher.clone(), created));
        Self { shards: (0..shards).map(shard).collect(), hasher }
    }

    pub(crate) fn of_key(&self, key: &K) -> &Arc<ChildShard<K, RandomState>> {
        // The index inside the shard uses the low bits of the same hash.
        let hash = self.hasher.hash_one(key) >> 40;
        &self.shards[hash as usize & (self.shards.len() - 1)]
    }

    /// Lists the live children page by page; each page is read under one short lock.
    pub(crate) fn list(&self) -> impl Iterator<Item = ChildInfo<K>> + '_ {
        self.shards.iter().flat_map(|shard| {
            let (mut page, mut more) = (0, true);
            std::iter::from_fn(move || {
                let mut infos = Vec::new();
                more.then(|| {
                    more = shard.list(page, &mut infos);
                    page += 1;
                    infos
                })
            })
            .flatten()
        })
    }
}

impl<K> Members for ShardSet<K>
where
    K: Eq + Hash + Clone + Debug + Send + Sync + 'static,
{
    fn shards(&self) -> usize {
        self.shards.len()
    }

    fn advance(&self, mode: Mode) {
        for shard in &self.shards {
            shard.advance(mode);
        }
    }

    fn chunks(&self, shard: usize, from: usize, many: usize, into: &mut Vec<Arc<ChildChunk>>) {
        self.shards[shard].chunks(from, many, into);
    }

    fn live(&self) -> usize {
        self.shards.iter().map(|shard| shard.live()).sum()
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for shard in &self.shards {
            sum.add(&shard.counts());
        }
        sum
    }

    fn stuck(&self, scope: &Arc<str>, most: usize, into: &mut Vec<Stuck>) {
        into.extend(self.list().take(most).map(|child| Stuck {
            scope: Arc::clone(scope),
            key: child.key.map(|key| format!("{key:?}")),
            number: child.number,
            spawned_at: child.spawned_at,
            age: child.age,
        }));
    }
}

/// The last handle and the last listing of the scope are gone: no later stop can reach the children, so they are signalled
/// here.
impl<K> Drop for ShardSet<K> {
    fn drop(&mut self) {
        for shard in &self.shards {
            shard.close();
        }
    }
}
