//! Walks through everything that can happen to a small system, in every order, and says whether what must hold holds. For
//! tests of protocols: a model's steps call the product's own decisions, so that what is explored is what runs.
//!
//! It must never know what is modelled: states and steps are a model's own.

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::hash::Hash;

/// A system with finitely many states.
pub trait Model {
    type State: Clone;
    /// What makes two states the same.
    type Key: Eq + Hash;
    type Step: Copy + Debug;

    fn initial(&self) -> Self::State;
    fn key(&self, state: &Self::State) -> Self::Key;
    /// What can happen next. None of it: the state is an end.
    fn steps(&self, state: &Self::State) -> Vec<Self::Step>;
    /// What comes of it.
    ///
    /// # Errors
    /// What the step must not do.
    fn take(&self, state: &Self::State, step: Self::Step) -> Result<Self::State, String>;
    /// What must hold in every state.
    ///
    /// # Errors
    /// What does not hold.
    fn check(&self, state: &Self::State) -> Result<(), String>;
    /// Is this what the system comes to when it is left alone? One like this must be within reach of every state, so nothing
    /// runs in circles for ever; and every end must be one.
    fn is_settled(&self, state: &Self::State) -> bool;
}

/// A system in which everything held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explored {
    pub states: usize,
    /// States that are what the system comes to.
    pub settled: usize,
}

/// The shortest way to something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    pub fault: String,
    pub steps: Vec<String>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {}", self.fault, self.steps.join(", "))
    }
}

struct Node {
    /// Where it was found from, and by which step.
    from: Option<(usize, String)>,
    settled: bool,
}

struct Walk {
    nodes: Vec<Node>,
    /// Who leads to each.
    before: Vec<Vec<usize>>,
}

impl Walk {
    fn add(&mut self, from: Option<(usize, String)>, settled: bool) -> usize {
        self.nodes.push(Node { from, settled });
        self.before.push(Vec::new());
        self.nodes.len() - 1
    }

    fn counterexample(&self, last: usize, fault: String, step: Option<String>) -> Box<Counterexample> {
        let mut steps: Vec<String> = step.into_iter().collect();
        let mut at = self.nodes.get(last);
        while let Some(Node { from: Some((before, step)), .. }) = at {
            steps.push(step.clone());
            at = self.nodes.get(*before);
        }
        steps.reverse();
        Box::new(Counterexample { fault, steps })
    }

    /// One from which no settled state can be reached.
    fn astray(&self) -> Option<usize> {
        let mut comes_home: Vec<bool> = self.nodes.iter().map(|node| node.settled).collect();
        let mut left: Vec<usize> = (0..comes_home.len()).filter(|node| comes_home[*node]).collect();
        while let Some(node) = left.pop() {
            for &before in &self.before[node] {
                if !std::mem::replace(&mut comes_home[before], true) {
                    left.push(before);
                }
            }
        }
        comes_home.iter().position(|comes_home| !comes_home)
    }
}

/// Visits every state, nearest first.
///
/// # Errors
/// Something does not hold, or there are more than `limit` states.
pub fn explore<M: Model>(model: &M, limit: usize) -> Result<Explored, Box<Counterexample>> {
    let mut walk = Walk { nodes: Vec::new(), before: Vec::new() };
    let mut known: HashMap<M::Key, usize> = HashMap::new();
    let first = model.initial();
    known.insert(model.key(&first), walk.add(None, model.is_settled(&first)));
    let mut edge = std::collections::VecDeque::from([(0, first)]);
    while let Some((number, state)) = edge.pop_front() {
        model.check(&state).map_err(|fault| walk.counterexample(number, fault, None))?;
        let steps = model.steps(&state);
        if steps.is_empty() && !walk.nodes[number].settled {
            return Err(walk.counterexample(number, "nothing more happens".into(), None));
        }
        for step in steps {
            let name = format!("{step:?}");
            let next = match model.take(&state, step) {
                Ok(next) => next,
                Err(fault) => return Err(walk.counterexample(number, fault, Some(name))),
            };
            let key = model.key(&next);
            let found = match known.get(&key) {
                Some(found) => *found,
                None => {
                    let found = walk.add(Some((number, name)), model.is_settled(&next));
                    known.insert(key, found);
                    edge.push_back((found, next));
                    found
                }
            };
            walk.before[found].push(number);
            if walk.nodes.len() > limit {
                return Err(walk.counterexample(found, format!("more than {limit} states"), None));
            }
        }
    }
    if let Some(astray) = walk.astray() {
        return Err(walk.counterexample(astray, "it never comes to rest".into(), None));
    }
    let settled = walk.nodes.iter().filter(|node| node.settled).count();
    Ok(Explored { states: walk.nodes.len(), settled })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two who count to `top`, by turns of their own.
    struct Count {
        top: u8,
        forbidden: Option<(u8, u8)>,
        stuck: bool,
        circle: bool,
    }

    impl Model for Count {
        type State = (u8, u8);
        type Key = (u8, u8);
        type Step = bool;

        fn initial(&self) -> Self::State {
            (0, 0)
        }

        fn key(&self, state: &Self::State) -> Self::Key {
            *state
        }

        fn steps(&self, state: &Self::State) -> Vec<bool> {
            if self.circle && *state == (1, 1) {
                return vec![true];
            }
            [(true, state.0), (false, state.1)]
                .into_iter()
                .filter(|(left, at)| *at < self.top && !(self.stuck && *left && state.1 == self.top))
                .map(|(left, _)| left)
                .collect()
        }

        fn take(&self, state: &Self::State, left: bool) -> Result<Self::State, String> {
            if self.circle && *state == (1, 1) {
                return Ok(*state);
            }
            Ok(if left { (state.0 + 1, state.1) } else { (state.0, state.1 + 1) })
        }

        fn check(&self, state: &Self::State) -> Result<(), String> {
            if Some(*state) == self.forbidden { Err("forbidden".into()) } else { Ok(()) }
        }

        fn is_settled(&self, state: &Self::State) -> bool {
            *state == (self.top, self.top)
        }
    }

    const ALL: Count = Count { top: 3, forbidden: None, stuck: false, circle: false };

    #[test]
    fn every_order_is_walked_once() {
        assert_eq!(explore(&ALL, 100), Ok(Explored { states: 16, settled: 1 }));
    }

    #[test]
    fn what_must_not_be_is_found_by_the_shortest_way() {
        let fault = |model: Count| explore(&model, 100).unwrap_err();
        let found = fault(Count { forbidden: Some((1, 2)), ..ALL });
        assert_eq!((found.fault.as_str(), found.steps.len()), ("forbidden", 3));
        assert_eq!(fault(Count { stuck: true, ..ALL }).fault, "nothing more happens");
        assert_eq!(fault(Count { circle: true, ..ALL }).fault, "it never comes to rest");
        assert!(explore(&ALL, 15).unwrap_err().fault.contains("more than 15"));
    }
}
