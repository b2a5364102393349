//! Lists and dictionaries on their way through a function, at no price.
//!
//! The engine takes fuel for what a function returns, by its length. That is right for a text, which is walked through to
//! find an index in it, and wrong for a list of ten thousand messages, which is not.

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use std::sync::Arc;

/// What the engine is to look into instead of `value`.
pub(super) fn looked_into(value: &Value) -> Value {
    match value.kind() {
        ValueKind::Seq if !value.is_tuple() => Value::from_object(View(value.clone())),
        // A namespace is a map to the engine, but known by its type.
        ValueKind::Map if !super::weight::is_namespace(value) => Value::from_object(View(value.clone())),
        _ => value.clone(),
    }
}

#[derive(Debug)]
struct View(Value);

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        if self.0.kind() == ValueKind::Map { ObjectRepr::Map } else { ObjectRepr::Seq }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_item(key).ok().filter(|found| !found.is_undefined())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match (self.0.kind(), self.0.len()) {
            (ValueKind::Seq, Some(len)) => Enumerator::Seq(len),
            _ => self.0.try_iter().map_or(Enumerator::NonEnumerable, |keys| Enumerator::Iter(Box::new(keys))),
        }
    }
}
