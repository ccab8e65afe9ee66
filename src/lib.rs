//! A synchronous, thread-based Ankaios for constrained ECUs: `ank-server` holds the desired state
//! of a vehicle, one `ank-agent` per node makes the container engine reach it, `ank` is the command
//! line.
//!
//! # Map
//!
//! Each folder but `bin/` is a room and a crate of its own; this one lets the features choose
//! rooms.
//!
//! A workload goes down this list as a manifest, and its state comes back up. Each file begins with
//! its job and the thread that runs it.
//!
//! ```text
//! bin/            ank-server, ank-agent, ank; ankaios (all in one file), ank-schema (the schema of manifests)
//! model/          values and rules: manifests, states, masks, names; no I/O, no threads, no protobuf
//! wire/           the only place that knows protobuf, grpcio, rustls and the sockets of connections
//! server/         manifest in, plans out, states in, responses out: ServerLoop
//!   requests.rs, admission.rs        requests of clients, and which is served first
//!   subscriptions/                   the part with open subscriptions: events, logs, usage
//!   sessions/                        the part with connected peers, outboxes, agents and rights
//!   effects.rs                       what parts want to happen outside of them; lib.rs does it
//!   updates/                         the part with workloads and states. An update is read (desired_change.rs),
//!                                    checked (checks.rs), rendered (templates.rs), compared (plan.rs) and
//!                                    committed (commit.rs)
//!   rollouts/                        the part with updates that are staged, evaluated and rolled back as a whole
//!   rollout_steps.rs                         commits what that part returns
//!   connections.rs                           peers connect, report and disconnect
//!   history.rs, expiry.rs                    the last changes of states; certificates that expire soon
//! agent/          plans in, containers running, states out
//!   scheduler/    messages in, states out; workloads.rs has one record per workload: its desired
//!                 instance, its waits, its last status
//!   workload/     the control loop of one workload: all its containers; mailbox.rs has its target
//!   state_checker.rs                         what becomes of them
//!   control_interface/                       workloads that talk to the cluster
//!   images/                                  images that no workload needs any more
//! runtime/        the narrow waist to the container engines
//!   probes/                                  checks of workloads
//! cli/            `ank`: prepares a command, connects, runs it; update.rs sends all changes
//! platform/       what each program needs of its operating system: clock, threads, children, settings, logs
//! fakes/          tests only: a clock, an engine and checks for the tests of several rooms
//! simulation/     tests only, one thread: whole clusters from a seed, in virtual time
//! ```
//!
//! What a room offers is `pub`; the bounds that it, or rooms above it, need are in its `limits.rs`.
//! What only tests and the simulation look at (`inspection.rs`) exists in development builds only.
//!
//! ```text
//! model       uses no other room
//! platform    model
//! wire        platform, model
//! runtime     platform, model
//! server      wire, platform, model
//! agent       wire, runtime, platform, model
//! cli         wire, platform, model
//! ```
//!
//! # Threads
//!
//! ```text
//! main            starts and ends each program; all of `ank` but its connection
//! server          all decisions of a server
//! store, hook     its writes to disk; outside programs that change or veto an update
//! listen, tls, rx:peer, tx    its connections
//! grpc-poll-0     sockets of gRPC; passes small messages on
//! scheduler       all decisions of an agent about which workload is to run (agent/scheduler/)
//! wl:name         all containers of one workload
//! call:name       one long call of an engine for it: pull, create, init, start
//! watch, list:runtime    states of containers of all engines; one listing
//! probes, paths, exec:name    checks of workloads and of the node
//! control         all control interfaces of a node
//! uplink, rx:server, tls:server    the connection of an agent
//! log:number:name      one stream of log lines
//! notify, metrics, usage      systemd; the metrics file; CPU and memory on request
//! images, image-call   which images are needed; one listing or removal of images
//! removal, reaper      folders and killed children that are left
//! cli:rx, cli:signals, cli:ask            the connection of `ank`; signals; an answer
//! ```
//!
//! Each piece of state has one owner. All else goes through bounded channels: reports flow up and
//! may block, targets flow down and never do; no thread sends to itself. A thread ends when its
//! owner drops what only the owner can send on, or closes the socket it reads.

#[cfg(feature = "agent")]
pub use ankaios_agent as agent;
#[cfg(feature = "cli")]
pub use ankaios_cli as cli;
pub use ankaios_model as model;
pub use ankaios_platform as platform;
#[cfg(feature = "agent")]
pub use ankaios_runtime as runtime;
#[cfg(feature = "server")]
pub use ankaios_server as server;
pub use ankaios_wire as wire;
