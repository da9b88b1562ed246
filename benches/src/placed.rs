//! Running where a plan of `tune plan` says.

use doorbell_tune::{Plan, PlanError};

use crate::cli::Common;
use crate::error::Failure;

/// Puts this program, and the serving process it starts, where the plan says, if there is one, and
/// takes from it what the command line leaves open. To be called before there is a second thread.
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
