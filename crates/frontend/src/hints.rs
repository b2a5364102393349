//! What gateways say about placement in headers, and whether a pin can be followed (behaviour.md 1.7).

use crate::model::Model;
use crate::plan::Plan;
use dynamo_protocols::limits;
use dynamo_types::{Class, Error, InstanceId, Result};
use hyper::HeaderMap;
use std::str::FromStr;
use std::sync::Arc;

/// The name to use, and the older one without `dynamo` that is understood as well.
type Names = [&'static str; 2];

const WORKER: Names = ["x-dynamo-worker-instance-id", "x-worker-instance-id"];
const PREFILL_WORKER: Names = ["x-dynamo-prefill-instance-id", "x-prefill-instance-id"];
const RANK: Names = ["x-dynamo-dp-rank", "x-dp-rank"];
/// What engines call the rank.
const DATA_PARALLEL_RANK: Names = ["x-data-parallel-rank", "x-data-parallel-rank"];
const PREFILL_RANK: Names = ["x-dynamo-prefill-dp-rank", "x-prefill-dp-rank"];
const PRIORITY: Names = ["x-dynamo-request-priority", "x-request-priority"];
const STRICT_PRIORITY: Names = ["x-dynamo-request-strict-priority", "x-request-strict-priority"];
/// The class of service that a request is queued under.
const POLICY_CLASS: Names = ["x-dynamo-meta-policy-class", "x-meta-policy-class"];
/// Longest name of such a class.
const POLICY_CLASS_MAX_BYTES: usize = 64;
const TENANT: &str = "x-tenant-id";

/// What pickers send for "no rank".
const UNSET_RANK: u32 = u32::MAX;

/// Headers win over the body.
///
/// # Errors
/// 400 that names the header and what it should be.
pub(crate) fn overrule(plan: &mut Plan, headers: &HeaderMap) -> Result<()> {
    if let Some(worker) = id(headers, WORKER)? {
        plan.routing.worker = Some(worker);
    }
    if let Some(worker) = id(headers, PREFILL_WORKER)? {
        plan.prefill.worker = Some(worker);
    }
    let rank = match number::<u32>(headers, RANK, "a 32-bit integer")? {
        None => number(headers, DATA_PARALLEL_RANK, "a 32-bit integer")?,
        rank => rank,
    };
    if let Some(rank) = rank.filter(|rank| *rank != UNSET_RANK) {
        plan.routing.rank = Some(rank);
    }
    if let Some(rank) = number(headers, PREFILL_RANK, "a 32-bit integer")?.filter(|rank| *rank != UNSET_RANK)
    {
        plan.prefill.rank = Some(rank);
    }
    salt(plan, headers)?;
    if let Some(priority) = number(headers, PRIORITY, "a 32-bit integer")? {
        plan.routing.priority = priority;
    }
    if let Some(tier) = number(headers, STRICT_PRIORITY, "a 32-bit integer of at least 0")? {
        plan.routing.strict_priority = tier;
    }
    Ok(())
}

/// Only what keeps the caches of tenants apart.
///
/// # Errors
/// 400 for a tenant that is no text, or too long.
pub(crate) fn salt(plan: &mut Plan, headers: &HeaderMap) -> Result<()> {
    if let Some(tenant) = tenant(headers)? {
        plan.routing.salt = Some(Arc::from(tenant));
    }
    Ok(())
}

/// Which class the request belongs to: a name, as it is told in log and trace. Empty is none.
///
/// # Errors
/// 400 for what is no name.
pub(crate) fn policy_class(headers: &HeaderMap) -> Result<Option<Arc<str>>> {
    let Some((name, class)) = text(headers, POLICY_CLASS) else { return Ok(None) };
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let is_sent = headers.get(name).is_some_and(|value| !value.is_empty());
    if class.is_empty() && !is_sent {
        return Ok(None);
    }
    if class.is_empty() || class.len() > POLICY_CLASS_MAX_BYTES || !class.bytes().all(is_part) {
        return Err(bad(name, "a name of at most 64 letters, digits, `.`, `_` and `-`"));
    }
    Ok(Some(class.into()))
}

/// As long as a salt in a body may be. Empty is absent.
fn tenant(headers: &HeaderMap) -> Result<Option<&str>> {
    let Some(value) = headers.get(TENANT) else { return Ok(None) };
    // Whoever is served without the tenant it names shares a cache with others.
    let tenant = std::str::from_utf8(value.as_bytes()).map_err(|_| bad(TENANT, "text in UTF-8"))?;
    limits::CACHE_SALT.check_len(TENANT, tenant.len())?;
    Ok(Some(tenant).filter(|tenant| !tenant.is_empty()))
}

fn text(headers: &HeaderMap, names: Names) -> Option<(&'static str, &str)> {
    let (name, value) = names.into_iter().find_map(|name| headers.get(name).map(|value| (name, value)))?;
    Some((name, value.to_str().unwrap_or("").trim()))
}

fn number<T: FromStr>(headers: &HeaderMap, names: Names, expected: &str) -> Result<Option<T>> {
    let Some((name, text)) = text(headers, names) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| bad(name, expected))
}

/// Decimal, or hexadecimal after `0x`.
fn id(headers: &HeaderMap, names: Names) -> Result<Option<InstanceId>> {
    let Some((name, text)) = text(headers, names) else { return Ok(None) };
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let parsed = parsed.map_err(|_| bad(name, "a decimal number, or a hexadecimal one after 0x"))?;
    Ok(Some(InstanceId(parsed)))
}

fn bad(name: &'static str, expected: &str) -> Error {
    Error::client(Class::Invalid, format!("header {name} must be {expected}")).with_param(name)
}

/// Joins the pins of both parts: here one worker does prefill and decode, so they have to name the same. A pinned
/// worker has to be one of the model's; whether it has the rank the router knows.
///
/// # Errors
/// 400 that names the field.
pub(crate) fn settle_pins(model: &Model, plan: &mut Plan) -> Result<()> {
    let (prefill, routing) = (plan.prefill, &mut plan.routing);
    let two = |field: &str, decode: String, prefill: String| {
        Err(Error::invalid(format!(
            "`{field}` ({prefill}) must be the one pinned for decode ({decode}): the workers of model `{}` do both",
            model.name()
        ))
        .with_param(field))
    };
    match (routing.worker, prefill.worker) {
        (Some(decode), Some(prefill)) if decode != prefill => {
            return two("nvext.prefill_worker_id", decode.0.to_string(), prefill.0.to_string());
        }
        (decode, prefill) => routing.worker = decode.or(prefill),
    }
    match (routing.rank, prefill.rank) {
        (Some(decode), Some(prefill)) if decode != prefill => {
            return two("nvext.prefill_dp_rank", decode.to_string(), prefill.to_string());
        }
        (decode, prefill) => routing.rank = decode.or(prefill),
    }
    match routing.worker {
        Some(worker) if model.worker(worker).is_none() => Err(Error::invalid(format!(
            "the pinned worker {} (hexadecimal {worker}) does not serve the model `{}`",
            worker.0,
            model.name()
        ))
        .with_param("nvext.backend_instance_id")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn a_tenant_overrules_the_body_and_is_never_passed_over() {
        let salted = |tenant: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(TENANT, HeaderValue::from_bytes(tenant).unwrap());
            let mut plan = Plan::of("m".into());
            plan.routing.salt = Some("body".into());
            overrule(&mut plan, &headers).map(|()| plan.routing.salt)
        };
        for (tenant, salt) in [("a", "a"), ("ä", "ä"), ("", "body")] {
            assert_eq!(salted(tenant.as_bytes()).unwrap().as_deref(), Some(salt));
        }
        for tenant in [&b"\xff"[..], &[b'x'; 513]] {
            let error = salted(tenant).unwrap_err();
            assert_eq!((error.class(), error.param()), (Class::Invalid, Some(TENANT)));
        }
    }

    #[test]
    fn a_policy_class_is_a_name() {
        let class = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(POLICY_CLASS[0], HeaderValue::from_str(value).unwrap());
            policy_class(&headers)
        };
        assert_eq!(class("gold-1.a_B").unwrap().as_deref(), Some("gold-1.a_B"));
        assert_eq!(class("").unwrap(), None);
        assert_eq!(policy_class(&HeaderMap::new()).unwrap(), None);
        for value in ["a b", "a/b", " ", "é", &"x".repeat(65)] {
            assert_eq!(class(value).unwrap_err().param(), Some(POLICY_CLASS[0]), "{value}");
        }
    }

    #[test]
    fn ids_and_numbers_in_headers() {
        let with = |name: &'static str, text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(text));
            headers
        };
        let read = |text| id(&with("x-dynamo-worker-instance-id", text), WORKER);
        assert_eq!(read("12").unwrap(), Some(InstanceId(12)));
        assert_eq!(read("0xff").unwrap(), Some(InstanceId(255)));
        assert_eq!(read("ff").unwrap_err().param(), Some("x-dynamo-worker-instance-id"));
        assert_eq!(id(&HeaderMap::new(), WORKER).unwrap(), None);
        // The older name, unless both are there.
        let mut both = with("x-worker-instance-id", "3");
        assert_eq!(id(&both, WORKER).unwrap(), Some(InstanceId(3)));
        both.insert("x-dynamo-worker-instance-id", HeaderValue::from_static("4"));
        assert_eq!(id(&both, WORKER).unwrap(), Some(InstanceId(4)));
        let rank = |text| number::<u32>(&with("x-dp-rank", text), RANK, "a 32-bit integer");
        assert_eq!(rank(" 7 ").unwrap(), Some(7));
        for text in ["-1", "4294967296", "", "1.0"] {
            assert_eq!(rank(text).unwrap_err().param(), Some("x-dp-rank"), "{text}");
        }
    }
}
