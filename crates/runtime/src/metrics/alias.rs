//! One family under a second name, for what users know by both: it is counted once.

use super::{Error, HistogramVec};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Clone)]
pub(super) struct Alias {
    family: HistogramVec,
    desc: Arc<Desc>,
}

impl Alias {
    pub(super) fn new(family: &HistogramVec, name: &str, help: &str) -> Result<Self, Error> {
        let labels = family.desc().first().map(|desc| desc.variable_labels.clone()).unwrap_or_default();
        let desc = Arc::new(Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())?);
        Ok(Self { family: family.clone(), desc })
    }
}

impl Collector for Alias {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.family.collect();
        for family in &mut families {
            family.set_name(self.desc.fq_name.clone());
            family.set_help(self.desc.help.clone());
        }
        families
    }
}
