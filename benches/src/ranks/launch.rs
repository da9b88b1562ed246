//! Which rank this process is: what `mpirun`, `srun` or a person has put into the environment.

use std::net::{IpAddr, Ipv4Addr};

use crate::error::Failure;

/// The variables of a rank that this program starts itself (`--ranks`), and a job's name.
pub(crate) const RANK: &str = "DOORBELL_RANK";
pub(crate) const SIZE: &str = "DOORBELL_RANKS";
pub(crate) const JOB: &str = "DOORBELL_JOB";

/// The most ranks of a run.
pub(crate) const RANKS_MAX: u32 = 1024;

/// The first port that a job may get, and how many there are. Below those that systems give to
/// outgoing connections.
const PORTS: (u16, u64) = (20_000, 12_000);

/// A launcher, and its variables.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static [&'static str],
    /// Ranks on this host, if it says so.
    local_size: &'static [&'static str],
    /// What tells one run from another.
    job: &'static [&'static str],
    /// The hosts, the first rank's first.
    hosts: Option<&'static str>,
    /// Set only in processes that the launcher started as ranks.
    mark: Option<&'static str>,
}

/// In this order: `mpirun` within a Slurm job sets both kinds, and its own count.
const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        name: "doorbell-bench --ranks",
        rank: RANK,
        size: &[SIZE],
        local_size: &[SIZE],
        job: &[JOB],
        hosts: None,
        mark: None,
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
        hosts: None,
        mark: None,
    },
    Launcher {
        name: "a PMI launcher",
        rank: "PMI_RANK",
        size: &["PMI_SIZE"],
        local_size: &["MPI_LOCALNRANKS"],
        job: &["PMI_JOBID", "PMI_ID"],
        hosts: None,
        mark: None,
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_size: &[],
        job: &["SLURM_JOB_ID"],
        hosts: Some("SLURM_STEP_NODELIST"),
        // A batch script has a rank and a count too, but is no rank of a step.
        mark: Some("SLURM_STEP_NODELIST"),
    },
    Launcher {
        name: "PMIx",
        rank: "PMIX_RANK",
        size: &["PMIX_SIZE"],
        local_size: &[],
        job: &["PMIX_NAMESPACE"],
        hosts: None,
        mark: None,
    },
];

/// A rank, and what is known of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The launcher, for people.
    pub(crate) by: &'static str,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// The name of the run: other runs have others.
    pub(crate) job: String,
    /// Where the first rank is, as far as the launcher says.
    pub(crate) first: First,
}

/// Where the first rank listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// All ranks are on this host, or nothing says otherwise.
    Here,
    /// On the host with this name.
    Host(String),
    /// Elsewhere, and nothing says where.
    Unknown,
}

impl Launch {
    /// Looks into the environment. `None` if this process is no rank, or the only one.
    ///
    /// # Errors
    /// The variables contradict each other.
    pub(crate) fn look() -> Result<Option<Launch>, Failure> {
        Launch::of(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn of(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launch>, Failure> {
        // Of the same ranks Slurm knows more than PMI. But a launcher within a Slurm job may start
        // several ranks in each task of a step, and then only its own count is right.
        let is_slurm_pmi =
            get("PMI_SIZE").is_some() && get("PMI_SIZE") == get("SLURM_STEP_NUM_TASKS");
        for launcher in &LAUNCHERS {
            let is_missing = launcher.mark.is_some_and(|mark| get(mark).is_none());
            if is_missing || (is_slurm_pmi && launcher.rank == "PMI_RANK") {
                continue;
            }
            if let Some(rank) = get(launcher.rank) {
                return launcher.launch(&rank, get);
            }
        }
        Ok(None)
    }

    /// The port of the run, if none is named.
    pub(crate) fn port(&self) -> u16 {
        // FNV-1a, which every version of this program computes alike.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = self.job.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        PORTS.0 + (hash % PORTS.1) as u16
    }

    /// The address of the first rank if all are here.
    pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
}

impl Launcher {
    fn launch(
        &self,
        rank: &str,
        get: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Launch>, Failure> {
        let first = |names: &[&str]| names.iter().find_map(|name| get(name));
        let (name, names) = (self.rank, self.size.join(" or "));
        let cure = "start all ranks by one mpirun or srun";
        let Some(size) = first(self.size) else {
            return Err(Failure::new(format!(
                "{name}={rank} says which rank this is, but {names} does not say how many there \
                 are; {cure}, or set both"
            )));
        };
        let (Ok(number), Ok(count)) = (rank.parse::<u32>(), size.parse::<u32>()) else {
            return Err(Failure::new(format!(
                "{name}={rank} of {names}={size}: both must be whole numbers; {cure}"
            )));
        };
        if number >= count || count > RANKS_MAX {
            return Err(Failure::new(format!(
                "{name}={rank} of {names}={size}: there may be 1 to {RANKS_MAX} ranks, and they \
                 count from 0; {cure}"
            )));
        }
        if count == 1 {
            return Ok(None);
        }
        let job = first(self.job).unwrap_or_else(|| "none".to_owned());
        // A job of Slurm has several steps, one after the other or at the same time.
        let step = get("SLURM_STEP_ID").filter(|_| self.hosts.is_some()).unwrap_or_default();
        let job = format!("{} {job} {step}", self.name);
        let local = first(self.local_size);
        let host = match (self.hosts.and_then(get), local) {
            (Some(list), _) if get("SLURM_STEP_NUM_NODES").as_deref() != Some("1") => {
                first_host(&list).map_or(First::Unknown, First::Host)
            }
            (None, Some(local)) if local != size => First::Unknown,
            _ => First::Here,
        };
        Ok(Some(Launch { by: self.name, rank: number, size: count, job, first: host }))
    }
}

/// The first host of a list as Slurm writes it: `node[03-05,9],other`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find(['[', ',']).unwrap_or(list.len());
    let (start, rest) = list.split_at(end);
    let Some(inside) = rest.strip_prefix('[') else {
        return Some(start.to_owned()).filter(|name| !name.is_empty());
    };
    let number: String = inside.chars().take_while(char::is_ascii_digit).collect();
    let after = inside.split_once(']').map_or("", |(_, after)| after);
    let after = after.split(',').next().unwrap_or_default();
    // A name with two brackets is of a kind that this does not read.
    (!number.is_empty() && !after.contains('[')).then(|| format!("{start}{number}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(variables: &[(&str, &str)]) -> Result<Option<Launch>, Failure> {
        Launch::of(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_rank_of_each_launcher_is_known() {
        let found = look(&[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("PMIX_NAMESPACE", "77"),
            ("PMIX_RANK", "1"),
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NODELIST", "b[1-2]"),
        ]);
        let found = found.unwrap().unwrap();
        assert_eq!((found.by, found.rank, found.size), ("Open MPI", 1, 4));
        assert_eq!(found.first, First::Here);
        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_JOB_ID", "12"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "rack1-node[08-09]"),
        ];
        let found = look(&slurm).unwrap().unwrap();
        assert_eq!((found.rank, found.size), (3, 4), "of the step, not of the job");
        assert_eq!(found.first, First::Host("rack1-node08".to_owned()));
        // Slurm may set the variables of PMI, too, and others start more ranks than tasks.
        let with_pmi = |size| {
            let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", size)];
            look(&[&slurm[..], &pmi].concat()).unwrap().unwrap()
        };
        assert_eq!(with_pmi("4"), found);
        assert_eq!((with_pmi("16").by, with_pmi("16").size), ("a PMI launcher", 16));
        // The batch script of a job is no rank.
        assert_eq!(look(&slurm[..3]).unwrap(), None);
    }

    #[test]
    fn one_rank_alone_is_no_run_of_ranks() {
        assert_eq!(look(&[]).unwrap(), None);
        let alone = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
        assert_eq!(look(&alone).unwrap(), None);
    }

    #[test]
    fn variables_that_contradict_each_other_are_refused_with_the_cure() {
        for (variables, part) in [
            (&[("OMPI_COMM_WORLD_RANK", "1")][..], "OMPI_COMM_WORLD_SIZE does not say"),
            (&[("OMPI_COMM_WORLD_RANK", "4"), ("OMPI_COMM_WORLD_SIZE", "4")], "count from 0"),
            (&[("OMPI_COMM_WORLD_RANK", "x"), ("OMPI_COMM_WORLD_SIZE", "4")], "whole numbers"),
            (&[("PMI_RANK", "0"), ("PMI_SIZE", "9999")], "1 to 1024 ranks"),
            (&[("PMIX_RANK", "0")], "set both"),
        ] {
            let text = look(variables).unwrap_err().to_string();
            assert!(text.contains(part) && text.contains("mpirun or srun"), "{text}");
        }
    }

    #[test]
    fn several_hosts_without_a_name_are_unknown() {
        let found = look(&[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ]);
        assert_eq!(found.unwrap().unwrap().first, First::Unknown);
    }

    #[test]
    fn the_first_host_of_a_list_is_read() {
        for (list, first) in [
            ("n1", Some("n1")),
            ("n1,n2", Some("n1")),
            ("node[03-05,9],other", Some("node03")),
            ("n[7,9]-ib,x[1-2]", Some("n7-ib")),
            ("r[1-2]n[3-4]", None),
            ("", None),
            ("n[]", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }

    #[test]
    fn jobs_have_ports_of_their_own() {
        let port = |job: &str| {
            let (job, first) = (job.to_owned(), First::Here);
            Launch { by: "", rank: 0, size: 2, job, first }.port()
        };
        assert_eq!(port("Slurm 7 0"), port("Slurm 7 0"));
        assert_ne!(port("Slurm 7 0"), port("Slurm 7 1"));
        assert!((20_000..32_000).contains(&port("a")));
    }
}
