//! Strongly connected components of a directed graph (Tarjan, 1972).

use std::collections::BTreeMap;

/// Every set of two or more nodes that reach each other, sorted.
pub(super) fn cycles<N: Ord + Clone>(edges: &BTreeMap<N, Vec<N>>) -> Vec<Vec<N>> {
    let mut search = Search { edges, visited: BTreeMap::new(), stack: Vec::new(), components: Vec::new() };
    for node in edges.keys() {
        if !search.visited.contains_key(node) {
            search.visit(node);
        }
    }
    search.components
}

#[derive(Debug)]
struct Search<'g, N> {
    edges: &'g BTreeMap<N, Vec<N>>,
    /// The order of the first visit, and the lowest order that is reached.
    visited: BTreeMap<&'g N, usize>,
    stack: Vec<&'g N>,
    components: Vec<Vec<N>>,
}

impl<'g, N: Ord + Clone> Search<'g, N> {
    /// Returns the lowest order that `node` reaches.
    fn visit(&mut self, node: &'g N) -> usize {
        let order = self.visited.len();
        self.visited.insert(node, order);
        self.stack.push(node);
        let mut lowest = order;
        for next in self.edges.get(node).into_iter().flatten() {
            match self.visited.get(next) {
                None => lowest = lowest.min(self.visit(next)),
                Some(reached) if self.stack.contains(&next) => lowest = lowest.min(*reached),
                Some(_) => {}
            }
        }
        if lowest == order {
            let start = self.stack.iter().position(|other| *other == node).expect("the node was pushed above");
            let mut component: Vec<N> = self.stack.drain(start..).cloned().collect();
            component.sort();
            if component.len() > 1 {
                self.components.push(component);
            }
        }
        lowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_reach_each_other_are_one_component() {
        let edges =
            BTreeMap::from([(1, vec![2]), (2, vec![3, 4]), (3, vec![1]), (4, vec![5]), (5, vec![4]), (6, vec![1])]);
        let mut found = cycles(&edges);
        found.sort();
        assert_eq!(found, [vec![1, 2, 3], vec![4, 5]]);
    }
}
