//! How large an input is, as far as it matters.

use minijinja::Value as JinjaValue;
use minijinja::value::ValueKind;
use serde_json::Value;

/// Bytes that a value takes beside its text.
const VALUE_BYTES: usize = 16;

/// Takes a value's size from what is left. False once nothing is.
pub(super) fn fits(value: &Value, left: &mut usize) -> bool {
    let takes = VALUE_BYTES + value.as_str().map_or(0, str::len);
    take(takes, left)
        && match value {
            Value::Array(items) => items.iter().all(|item| fits(item, left)),
            Value::Object(map) => map.iter().all(|(key, item)| take(key.len(), left) && fits(item, left)),
            _ => true,
        }
}

/// The same for a value of the engine. What cannot be walked through is small.
pub(super) fn fits_value(value: &JinjaValue, left: &mut usize) -> bool {
    let takes = VALUE_BYTES + value.as_str().map_or(0, str::len);
    if !take(takes, left) {
        return false;
    }
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && value.kind() != ValueKind::Seq {
        return true;
    }
    let Ok(mut items) = value.try_iter() else { return true };
    items.all(|item| {
        fits_value(&item, left)
            && (!is_map || value.get_item(&item).map_or(true, |item| fits_value(&item, left)))
    })
}

fn take(bytes: usize, left: &mut usize) -> bool {
    let fits = bytes <= *left;
    *left = left.saturating_sub(bytes);
    fits
}
