//! Runs the program where a plan of `tune plan` puts it.

use doorbell_tune::{Plan, PlanError};

use crate::ask::cli::Common;
use crate::error::Failure;

/// If there is a plan, puts this program and the serving process it starts where the plan says, and
/// takes cores and device from it. Call it before there is a second thread.
pub(crate) fn enter(common: &mut Common) -> Result<(), Failure> {
    let Some(plan) = plan(common)? else { return Ok(()) };
    plan.enter().map_err(|error| Failure::new(error.to_string()))?;
    common.cores = plan.workers.iter().map(|worker| worker.cpu).collect();
    common.device = common.device.take().or(plan.device);
    Ok(())
}

fn plan(common: &Common) -> Result<Option<Plan>, Failure> {
    let plan = match &common.plan {
        Some(file) => Plan::load(file).map(Some),
        None if common.cores.is_empty() => Plan::from_env(),
        None => Ok(None),
    };
    plan.map_err(|error: PlanError| Failure::new(error.to_string()))
}
