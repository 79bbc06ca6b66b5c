//! A list that mostly has one item, which needs no allocation then: most predicates have one shape and one key.

/// Items in the order of [`Self::push`], until one is removed.
#[derive(Debug)]
pub(crate) enum SmallList<T> {
    /// A single item.
    Single(T),
    /// None, or several.
    Several(Vec<T>),
}

impl<T: Copy> SmallList<T> {
    pub(crate) const fn new() -> Self {
        Self::Several(Vec::new())
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::Single(item) => std::slice::from_ref(item),
            Self::Several(items) => items,
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        match self {
            Self::Single(item) => std::slice::from_mut(item),
            Self::Several(items) => items,
        }
    }

    pub(crate) fn push(&mut self, item: T) {
        match self {
            Self::Single(first) => *self = Self::Several(vec![*first, item]),
            Self::Several(items) if items.is_empty() => *self = Self::Single(item),
            Self::Several(items) => items.push(item),
        }
    }

    /// Removes an item; the last one takes its place. Nothing happens if there is no such item.
    pub(crate) fn swap_remove(&mut self, position: usize) {
        match self {
            Self::Single(_) if position == 0 => *self = Self::new(),
            Self::Several(items) if position < items.len() => {
                items.swap_remove(position);
                if let [only] = items[..] {
                    *self = Self::Single(only);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_behaves_as_a_vector() {
        let (mut list, mut vector) = (SmallList::new(), Vec::new());
        for (step, position) in [0, 1, 0, 2, 1, 0, 3, 0, 0, 0, 0].into_iter().enumerate() {
            if step % 3 < 2 {
                list.push(step);
                vector.push(step);
            }
            if position < vector.len() {
                list.swap_remove(position);
                vector.swap_remove(position);
            }
            assert_eq!(list.as_slice(), vector, "step {step}");
            assert_eq!(list.as_mut_slice().len(), vector.len());
        }
    }
}
