//! How the ranks find each other: rank 0 listens, the others call it until it is there.

use std::io::{self, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::ranks::launch::{First, Launch};
use crate::ranks::net::{self, BEAT, Hello, Member, Net, News, Say, WRITE_LIMIT};

/// Version of the protocol between ranks.
const VERSION: u32 = 1;

/// How long a call may take to be answered by the system there.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two calls, and between two looks for callers.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a caller may take for its first line.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// A meeting: who this rank is, and where rank 0 listens.
pub(crate) struct Meeting {
    pub(crate) launch: Launch,
    /// `--rendezvous`, as it was given.
    pub(crate) named: Option<String>,
    /// What this rank was asked to measure. All ranks must be asked for the same.
    pub(crate) asked: String,
    /// How long a rank may not come, or make no progress.
    pub(crate) patience: Duration,
}

impl Meeting {
    /// Waits until all ranks are there. Also returns the address of this host that the others use.
    ///
    /// # Errors
    /// A rank does not come, or is asked for something else.
    pub(crate) fn join(&self) -> Result<(Net, IpAddr), Failure> {
        let (to, news) = mpsc::channel();
        let (members, local) = match self.launch.rank {
            0 => self.receive(&to)?,
            _ => self.call(&to)?,
        };
        Ok((Net::new(self.launch.rank, members, news, self.patience), local))
    }

    /// Host and port of rank 0.
    fn place(&self) -> Result<(String, u16), Failure> {
        let port = self.launch.port();
        if let Some(named) = &self.named {
            let Some((host, port)) = named.rsplit_once(':') else {
                return Ok((named.clone(), port));
            };
            let host = host.trim_matches(['[', ']']).to_owned();
            return port.parse().map(|port| (host, port)).map_err(|_| {
                Failure::new(format!("--rendezvous {named}: name rank 0 as HOST or HOST:PORT"))
            });
        }
        match &self.launch.first {
            First::Here => Ok((Launch::HERE.to_string(), port)),
            First::Host(host) => Ok((host.clone(), port)),
            First::Unknown => Err(Failure::new(format!(
                "the ranks are on several hosts, and {} does not say where rank 0 is; name its \
                 host with --rendezvous HOST:PORT",
                self.launch.by
            ))),
        }
    }

    fn hello(&self) -> Hello {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Hello {
            version: VERSION,
            job: self.launch.job.clone(),
            rank: self.launch.rank,
            size: self.launch.size,
            asked: self.asked.clone(),
            host: host.trim().to_owned(),
            process: std::process::id(),
        }
    }

    /// Rank 0 waits for the others.
    fn receive(&self, to: &Sender<News>) -> Result<(Vec<Member>, IpAddr), Failure> {
        let (host, port) = self.place()?;
        let listener = self.listen(&host, port)?;
        let mut local = Launch::HERE;
        let (mut members, mut since) = (Vec::<Member>::new(), Instant::now());
        let mut beat = Instant::now();
        while members.len() + 1 < self.launch.size as usize {
            match listener.accept() {
                Ok((stream, _)) => {
                    // Ranks of this host may have come another way than those of others.
                    let came = stream.local_addr().map(|addr| addr.ip().to_canonical());
                    local = came.ok().filter(|ip| !ip.is_loopback()).unwrap_or(local);
                    match self.greet(stream, &members, to) {
                        Ok(None) => {}
                        Ok(Some(member)) => {
                            members.push(member);
                            since = Instant::now();
                        }
                        Err(failure) => return Err(end(&mut members, failure)),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(PAUSE),
                Err(error) => {
                    let asked = format!("take the calls of the other ranks on port {port}");
                    return Err(Failure::system(asked, &error, "ulimit -n"));
                }
            }
            if beat.elapsed() > BEAT {
                beat = Instant::now();
                members.iter_mut().for_each(|member| net::write(&mut member.line, &Say::Beat));
            }
            if since.elapsed() > self.patience {
                let failure = self.missing(&members, &host, port);
                return Err(end(&mut members, failure));
            }
        }
        members.sort_by_key(|member| member.rank);
        Ok((members, local))
    }

    fn listen(&self, host: &str, port: u16) -> Result<TcpListener, Failure> {
        let failed = |error: io::Error| {
            let cure = "another run may use it: name another with --rendezvous HOST:PORT, the same \
                        for all ranks";
            Failure::system(format!("rank 0 listens on port {port}"), &error, cure)
        };
        let everywhere = |ip: IpAddr| TcpListener::bind((ip, port));
        // Here a name may lead to this host alone, and an address may be a router's.
        let named = host.parse::<IpAddr>().map(everywhere);
        let listener = match named {
            Ok(Err(error)) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
            Ok(Ok(listener)) => Ok(listener),
            Ok(Err(_)) | Err(_) => everywhere(Ipv6Addr::UNSPECIFIED.into())
                .or_else(|_| everywhere(Ipv4Addr::UNSPECIFIED.into())),
        };
        let listener = listener.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    /// Takes the first line of a caller. `None` if it is not of this run.
    fn greet(
        &self,
        mut stream: TcpStream,
        members: &[Member],
        to: &Sender<News>,
    ) -> Result<Option<Member>, Failure> {
        // A caller that is no rank, or gone already, is no reason to fail.
        let Ok(reader) = prepare(&stream) else { return Ok(None) };
        let mut reader = BufReader::new(reader);
        let Some(Say::Hello(hello)) = net::read(&mut reader) else { return Ok(None) };
        let own = self.hello();
        if hello.job != own.job {
            let text = format!(
                "rank 0 at this port is of another run ({}, not {}); name another port with \
                 --rendezvous HOST:PORT, the same for all ranks",
                own.job, hello.job
            );
            net::write(&mut stream, &Say::Refused(text));
            return Ok(None);
        }
        let is = format!("{}, process {}", hello.host, hello.process);
        let name = format!("rank {} ({is})", hello.rank);
        let known = members.iter().find(|member| member.rank == hello.rank);
        let wrong = if hello.version != own.version {
            Some(format!("{name} runs another version; run the same everywhere"))
        } else if hello.size != own.size || hello.rank == 0 || hello.rank >= own.size {
            Some(format!(
                "{name} says that it is one of {} ranks, and rank 0 is one of {}; start all ranks \
                 by one mpirun or srun, or give each the same count and a rank of its own",
                hello.size, own.size
            ))
        } else if let Some(known) = known {
            Some(format!(
                "two processes say that they are rank {}: {} and {is}; give each a rank of its own",
                hello.rank, known.is
            ))
        } else if hello.asked != own.asked {
            Some(format!(
                "{name} was asked for `{}`, and rank 0 for `{}`; give all ranks the same options",
                hello.asked, own.asked
            ))
        } else {
            None
        };
        if let Some(text) = wrong {
            // Rank 0 prints it.
            net::write(&mut stream, &Say::Failed(String::new()));
            return Err(Failure::new(text));
        }
        let reading =
            stream.try_clone().and_then(|line| line.set_read_timeout(None).map(|()| line));
        let Ok(line) = reading else { return Ok(None) };
        net::read_on(hello.rank, reader, to.clone());
        Ok(Some(Member { rank: hello.rank, is, line, heard: Instant::now() }))
    }

    /// Some ranks have not come.
    fn missing(&self, members: &[Member], host: &str, port: u16) -> Failure {
        let here = |rank: &u32| members.iter().any(|member| member.rank == *rank);
        let missing: Vec<String> =
            (1..self.launch.size).filter(|rank| !here(rank)).map(|rank| rank.to_string()).collect();
        Failure::new(format!(
            "{} of {} ranks did not come within {} s: {}; start them by the same mpirun or srun, \
             and see that they reach {host}:{port} (--rendezvous HOST:PORT, --wait SECONDS)",
            missing.len(),
            self.launch.size,
            self.patience.as_secs_f64(),
            missing.join(", ")
        ))
    }

    /// Another rank calls rank 0 until it answers.
    fn call(&self, to: &Sender<News>) -> Result<(Vec<Member>, IpAddr), Failure> {
        let (host, port) = self.place()?;
        let start = Instant::now();
        let stream = loop {
            let error = match reach(&host, port) {
                Ok(stream) => break stream,
                Err(error) => error,
            };
            if start.elapsed() > self.patience {
                let asked = format!("rank {} calls rank 0 at {host}:{port}", self.launch.rank);
                let cure = "is rank 0 started there? Name its host with --rendezvous HOST:PORT, or \
                            give it longer with --wait";
                return Err(Failure::system(asked, &error, cure));
            }
            thread::sleep(PAUSE);
        };
        let failed = |error: io::Error| {
            Failure::system(format!("talk to rank 0 at {host}:{port}"), &error, "call again")
        };
        let mut line = stream;
        let reader = prepare(&line).map_err(failed)?;
        line.set_read_timeout(None).map_err(failed)?;
        let local = line.local_addr().map_err(failed)?.ip().to_canonical();
        net::write(&mut line, &Say::Hello(self.hello()));
        net::read_on(0, BufReader::new(reader), to.clone());
        let is = format!("{host}:{port}");
        let first = Member { rank: 0, is, line, heard: Instant::now() };
        Ok((vec![first], local))
    }
}

/// Ends the run for those that have come.
fn end(members: &mut [Member], failure: Failure) -> Failure {
    let said = Say::Failed(failure.to_string());
    members.iter_mut().for_each(|member| net::write(&mut member.line, &said));
    failure
}

/// Calls each address of a host.
fn reach(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for addr in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&SocketAddr::new(addr.ip(), port), CALL_LIMIT) {
            // A port that systems give to outgoing connections may answer itself.
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {}
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Limits the times of a connection. Returns the end to read from.
fn prepare(stream: &TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    stream.set_read_timeout(Some(HELLO_LIMIT))?;
    stream.try_clone()
}
