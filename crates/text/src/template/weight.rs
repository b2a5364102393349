//! What the values of a template may weigh.
//!
//! The engine's fuel pays for what an instruction makes, not for what is inside a value. A list that holds itself twice,
//! and so on, is small in memory and without end when shown or compared; one that holds one that holds one overflows
//! the stack when it is dropped. So the source is rewritten ([`super::guards`]) to send values through here:
//!
//! - What is kept in a variable is nested at most [`MAX_DEPTH`] deep, holds no lazy views, and no namespace can be
//!   reached from itself.
//! - What is compared is walked first, and the walk is paid for.
//! - What is looked into by an index, a slice or a loop is paid for if it is a text, which is walked through for it.
//! - What is joined to a text is written by [`super::text`], within its bound.

use super::text::text;
use super::view;
use minijinja::value::{Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, tests};

/// Functions that the rewritten source calls.
pub(super) const KEPT: &str = "__kept";
pub(super) const HELD: &str = "__held";
pub(super) const COMPARED: &str = "__compared";
pub(super) const SHOWN: &str = "__shown";
pub(super) const ITEM: &str = "__item";

/// Deepest nesting of lists and dictionaries. Requests are parsed less deep than this.
pub(super) const MAX_DEPTH: usize = 128;
/// Most values in one: a conversation of ten thousand messages has half of them.
const MAX_VALUES: usize = 1 << 18;
/// Values that a walk passes for one unit of fuel: about the time of an instruction.
const VALUES_PER_FUEL: u64 = 16;
/// Bytes of strings that are compared for one unit of fuel.
const COMPARED_BYTES_PER_FUEL: u64 = 1024;
/// Bytes of a string that are looked at one by one for one unit of fuel.
const TEXT_BYTES_PER_FUEL: u64 = 64;
/// Longest text of one list or dictionary: larger than any list of tools.
pub(super) const MAX_SHOWN_BYTES: usize = 8 << 20;
/// Bytes of lists and dictionaries that are written for one unit of fuel.
pub(super) const SHOWN_BYTES_PER_FUEL: u64 = 16;

pub(super) fn register(environment: &mut Environment<'_>) {
    environment.add_function(KEPT, kept);
    environment.add_function(HELD, held);
    environment.add_function(COMPARED, compared);
    environment.add_function(SHOWN, shown);
    environment.add_function(ITEM, |value: &Value| view::looked_into(value));
    for name in ["chain", "zip", "lines", "bool", "split"] {
        // Not Jinja2's; the first two nest lazy views without end.
        environment.remove_filter(name);
    }
    for (name, test) in [("lower", tests::is_lower as fn(&Value) -> bool), ("upper", tests::is_upper)] {
        environment.add_test(name, move |state: &mut State, value: &Value| {
            state.consume_fuel(value.as_str().map_or(0, |text| text.len() as u64 / TEXT_BYTES_PER_FUEL))?;
            Ok::<bool, Error>(test(value))
        });
    }
    for (name, filter) in [
        ("sort", Value::from_function(filters::sort)),
        ("unique", Value::from_function(filters::unique)),
        ("min", Value::from_function(filters::min)),
        ("max", Value::from_function(filters::max)),
        ("groupby", Value::from_function(filters::groupby)),
        ("dictsort", Value::from_function(filters::dictsort)),
    ] {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            for arg in args.iter() {
                // Sorting compares an item with as many others as the list's length has binary digits.
                weigh(state, arg, VALUES_PER_FUEL)?;
            }
            filter.call(state, &args)
        });
    }
    for (name, filter) in [
        ("upper", Value::from_function(filters::upper)),
        ("lower", Value::from_function(filters::lower)),
        ("title", Value::from_function(filters::title)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("trim", Value::from_function(filters::trim)),
    ] {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = texts(state, &args.into_values())?;
            filter.call(state, &args)
        });
    }
    for (names, holds) in COMPARISONS {
        for name in *names {
            environment.add_test(*name, move |state: &mut State, left: &Value, right: &Value| {
                weigh(state, left, 1)?;
                weigh(state, right, 1)?;
                Ok::<bool, Error>(holds(left, right))
            });
        }
    }
    environment.add_test("in", is_in);
}

type Comparison = fn(&Value, &Value) -> bool;

const COMPARISONS: &[(&[&str], Comparison)] = &[
    (&["eq", "equalto", "=="], |left, right| left == right),
    (&["ne", "!="], |left, right| left != right),
    (&["lt", "lessthan", "<"], |left, right| left < right),
    (&["le", "<="], |left, right| left <= right),
    (&["gt", "greaterthan", ">"], |left, right| left > right),
    (&["ge", ">="], |left, right| left >= right),
];

fn is_in(state: &mut State, value: &Value, container: &Value) -> Result<bool, Error> {
    weigh(state, value, 1)?;
    weigh(state, container, 1)?;
    if let Some(text) = container.as_str() {
        return Ok(value.as_str().is_some_and(|part| text.contains(part)));
    }
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => Ok(!container.get_item(value)?.is_undefined()),
        _ => Ok(container.try_iter()?.any(|item| item == *value)),
    }
}

fn fault(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable)
}

/// Strings in the place of lists and dictionaries, for filters that would write them on their own.
pub(super) fn texts(state: &State, args: &[Value]) -> Result<Vec<Value>, Error> {
    let as_is = |arg: &Value| arg.is_kwargs() || arg.kind() == ValueKind::Number;
    args.iter().map(|arg| if as_is(arg) { Ok(arg.clone()) } else { as_text(state, arg) }).collect()
}

fn as_text(state: &State, value: &Value) -> Result<Value, Error> {
    if !is_container(value) && value.kind() != ValueKind::Number {
        return Ok(value.clone());
    }
    let text = text(value)?;
    state.consume_fuel(text.len() as u64 / SHOWN_BYTES_PER_FUEL)?;
    Ok(Value::from(text))
}

/// An operand of `~`.
fn shown(state: &mut State, value: &Value) -> Result<Value, Error> {
    as_text(state, value)
}

/// An operand of a comparison, or a key.
fn compared(state: &mut State, value: &Value) -> Result<Value, Error> {
    weigh(state, value, 1)?;
    Ok(value.clone())
}

/// Pays for one visit of everything in a value, `price` times over.
pub(super) fn weigh(state: &State, value: &Value, price: u64) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return state.consume_fuel(price * text.len() as u64 / COMPARED_BYTES_PER_FUEL);
    }
    if !is_container(value) {
        return Ok(());
    }
    Walk { state, price, unpaid: 0, passed: 0 }.pass(value, 0)
}

/// What a variable gets.
fn kept(state: &mut State, value: &Value) -> Result<Value, Error> {
    if !is_container(value) {
        return Ok(value.clone());
    }
    let mut walk = Walk { state, price: 1, unpaid: 0, passed: 0 };
    if is_namespace(value) {
        for key in value.try_iter()? {
            walk.settled(&value.get_item(&key)?, 1)?;
        }
        return Ok(value.clone());
    }
    Ok(walk.settled(value, 0)?.unwrap_or_else(|| value.clone()))
}

/// What an attribute of a namespace gets: it lives on where loops and calls end, so it must not hold what holds it.
pub(super) fn held(state: &mut State, value: &Value) -> Result<Value, Error> {
    if !is_container(value) && value.kind() != ValueKind::Plain {
        return Ok(value.clone());
    }
    let settled = Walk { state, price: 1, unpaid: 0, passed: 0 }.settled(value, 0)?;
    Ok(settled.unwrap_or_else(|| value.clone()))
}

pub(super) fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("Namespace"))
}

/// A walk through a value that stops when the fuel does.
struct Walk<'a, 'template, 'env> {
    state: &'a State<'template, 'env>,
    price: u64,
    unpaid: u64,
    passed: usize,
}

impl Walk<'_, '_, '_> {
    fn pay(&mut self, weight: u64) -> Result<(), Error> {
        self.unpaid += weight * self.price;
        let due = self.unpaid / VALUES_PER_FUEL;
        self.unpaid %= VALUES_PER_FUEL;
        if due > 0 { self.state.consume_fuel(due) } else { Ok(()) }
    }

    fn enter(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(fault(format!("a value is nested deeper than the limit of {MAX_DEPTH}")));
        }
        self.passed += 1;
        if self.passed > MAX_VALUES {
            return Err(fault(format!("a value holds more than the limit of {MAX_VALUES} values")));
        }
        let bytes = value.as_str().map_or(0, |text| text.len() as u64);
        self.pay(1 + bytes * VALUES_PER_FUEL / COMPARED_BYTES_PER_FUEL)
    }

    /// A lazy view may be one of a view of a view, so each of its items is dear.
    fn item_weight(value: &Value) -> u64 {
        if value.kind() == ValueKind::Iterable { VALUES_PER_FUEL } else { 0 }
    }

    fn pass(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.enter(value, depth)?;
        if !is_container(value) {
            return Ok(());
        }
        let weight = Self::item_weight(value);
        for item in value.try_iter()? {
            self.pay(weight)?;
            self.pass(&item, depth + 1)?;
            if value.kind() == ValueKind::Map {
                self.pass(&value.get_item(&item)?, depth + 1)?;
            }
        }
        Ok(())
    }

    /// The value without lazy views, if it has any: they hold on to more than they show.
    fn settled(&mut self, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
        self.enter(value, depth)?;
        match value.kind() {
            _ if is_namespace(value) => Err(fault("a namespace cannot be kept inside another value")),
            ValueKind::Plain => Err(fault("a loop or macro cannot be kept inside another value")),
            ValueKind::Seq | ValueKind::Iterable => self.settled_list(value, depth),
            ValueKind::Map => self.settled_map(value, depth),
            _ => Ok(None),
        }
    }

    fn settled_list(&mut self, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
        let is_lazy = value.kind() == ValueKind::Iterable;
        let weight = Self::item_weight(value);
        let mut items: Option<Vec<Value>> = is_lazy.then(Vec::new);
        for (index, item) in value.try_iter()?.enumerate() {
            self.pay(weight)?;
            let settled = self.settled(&item, depth + 1)?;
            if settled.is_some() && items.is_none() {
                items = Some(value.try_iter()?.take(index).collect());
            }
            if let Some(items) = &mut items {
                items.push(settled.unwrap_or(item));
            }
        }
        Ok(items
            .map(|items| if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) }))
    }

    fn settled_map(&mut self, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
        let mut pairs = Vec::new();
        let mut is_changed = false;
        for key in value.try_iter()? {
            let entry = value.get_item(&key)?;
            let settled = self.settled(&entry, depth + 1)?;
            let settled_key = self.settled(&key, depth + 1)?;
            is_changed |= settled.is_some() || settled_key.is_some();
            pairs.push((settled_key.unwrap_or(key), settled.unwrap_or(entry)));
        }
        Ok(is_changed.then(|| Value::from_pairs(pairs)))
    }
}
