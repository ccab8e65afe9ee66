//! A synchronous, thread-based Ankaios for constrained ECUs: `ank-server` holds the desired state of a vehicle,
//! one `ank-agent` per node makes the container engine reach it, `ank` is the command line.
//!
//! # Map
//!
//! Read downwards to follow a workload: manifest, server, agent, scheduler, control loop, engine, and its state
//! back up to the command line. In brackets: the thread that runs the file; `-` is a plain value or function.
//!
//! ```text
//! lib.rs                   this map; modules declared in reading order                        -
//! bin/                     settings, threads, wait for the end, exit code
//!   ank-server.rs          starts `listen` and `server`, waits for SIGTERM                    [main]
//!   ank-agent.rs           starts the agent's threads, waits for SIGTERM                      [main]
//!   ank.rs                 one command, one exit code                                         [main]
//!   ank-schema.rs          prints ank_schema.json, which editors know manifests by            [main]
//!   ankaios.rs             all three in one file, chosen by the name it is called under       [main]
//! limits.rs                every capacity, timeout, size and stack bound, with its reason     -
//! platform/                what each program needs of its operating system
//!   sync.rs                locks without poisoning, a descriptor that wakes a thread       [any]
//!   clock.rs               Clock trait and SystemClock                                        -
//!   threads.rs             named spawn with stack size, join with deadline                    -
//!   memory.rs              few malloc arenas, memory of bursts given back                     -
//!   metrics_file.rs        metrics for Prometheus, in a file that is replaced           [metrics]
//!   child.rs               outside programs: time limit, both pipes drained, output capped     [caller]
//!   child/followed.rs      outside programs whose output is read while they run                [caller]
//!   logging.rs             log lines and fatal errors of server and agent                     [any]
//!   program.rs             how server and agent end: exit codes, help                         [main]
//!   folder_lock.rs         a folder that one process at a time may use                        [main]
//!   private_folder.rs      folders and files that nobody but our user may change              [any]
//!   vital.rs               threads that must make progress: turns, nudges              [all of them]
//!   service_manager.rs     notifies systemd: ready, status, watchdog                        [notify]
//!   settings.rs            file < environment < flags, PEM texts, TLS decision                [main]
//! model/                   values and rules: no I/O, no threads, no protobuf
//!   yaml.rs                one YAML document with places and source texts                     -
//!   yaml/budget.rs         what a YAML text becomes when its aliases are followed             -
//!   place.rs               nodes of it with the way to them, for errors                       -
//!   fields.rs              one table: all fields of manifests and states                      -
//!   fields/reader.rs       YAML by this table to the field tree                               -
//!   manifest.rs            YAML text to DesiredState, errors with line numbers                -
//!   lifecycle.rs           the `lifecycle:` block of a runtime configuration                  -
//!   lifecycle/update.rs    its block `update`, for guarded updates                            -
//!   trial.rs               which instances of an update are healthy, waited for, have failed    -
//!   prepare_level.rs       how much of a start is done before it                              -
//!   runtime_config.rs      what a runtime configuration says for its engine, read once   [rx:server]
//!   prepare_level.rs       how much of a start is done before it                              -
//!   names.rs               names, and the instance name with its hash                         -
//!   workload.rs            Workload and what its parts may say                                -
//!   access_rules.rs        control interface rules as written                                 -
//!   authorizer.rs          these rules against requests                                       -
//!   validation.rs          which names, versions, masks and keys a state may have             -
//!   execution_state.rs     ExecutionState, its transitions, what fulfils a dependency         -
//!   complete_state.rs      DesiredState, WorkloadStates, agents; to and from the field tree   -
//!   guarded_update.rs      phases of guarded updates, hashes of definitions                 -
//!   usage.rs               what nodes and workloads use of CPU and memory                     -
//!   node.rs                the field tree                                                     -
//!   node/entries.rs        the entries of one of its maps                                     -
//!   field_path.rs          field masks: read, write, remove                                   -
//!   mask_tree.rs           many masks as one tree                                             -
//!   memory_size.rs         what values take in memory, about                                  -
//!   messages.rs            messages between programs, after the wire was checked              -
//!   modes.rs               tags by which workloads name the modes of the vehicle              -
//!   log_entries.rs         log lines cut to a size that every peer takes                      -
//!   version.rs             the version rule of the hello                                      -
//!   nearest.rs             the known name nearest to an unknown one                           -
//!   shown_text.rs          texts of others as people may see them                             -
//! wire/                    the only place that knows protobuf, grpcio, rustls and sockets
//!   address.rs             server URLs, how a connection is protected                         -
//!   schema.rs              generated from proto/                                              -
//!   convert/               schema to model and back
//!     values.rs            enumerations, instance names, execution states, logs               -
//!     tree.rs              states and workloads as field trees: a table, presence kept       -
//!     tree/reader.rs       bytes to trees by the table             [rx:peer] [rx:server] [main]
//!     tree/writer.rs       trees to bytes by the table               [server] [tx] [uplink] [main]
//!     to_server.rs         messages of clients                        [rx:peer] [uplink] [main]
//!     from_server.rs       messages of the server, plans for hooks     [tx] [rx:server] [hook]
//!     control.rs           messages between workloads and their agent               [control]
//!     usage.rs             what nodes and workloads use                              [rx:peer]
//!   fields.rs              the fields of a message as they stand in its bytes                -
//!   delimited.rs           messages with their length before them                   [control]
//!   weight.rs              what a message takes when it is decoded         [control] [rx:peer]
//!   grpc.rs                methods, channel arguments, blocking waits                         -
//!   grpc_parts.rs          what of the library gets into our programs                       -
//!   tls.rs                 certificates, handshake, session                         [tls:port]
//!   pump.rs                bytes between one connection and gRPC                [listen] [tls:port]
//!   plain_pump.rs          connections of the server without TLS                         [listen]
//!   frame_gate.rs          lengths and room of messages, before gRPC takes them  [listen] [tls:port]
//!   peer.rs                what a stream is connected to, room in the inbox           [rx:peer]
//!   hello.rs               who may open a stream                                     [rx:peer]
//!   hook_message.rs        what hooks read and write                                  [hook]
//!   budget.rs              bytes and places that many share, first come first served          [any]
//!   encoded_state.rs       a state as bytes, shared by its receivers                 [server] [tx]
//!   outbox.rs              messages waiting for one peer, its two ends              [server] [tx]
//!   outbox/queue.rs        what waits, bounded and merged                           [server] [tx]
//!   outbox/snapshot.rs     all states of one moment, for many                       [server] [tx]
//!   shared_state.rs        a state of an instance for many, encoded once             [server] [tx]
//!   foreign.rs             messages cut to what other implementations take                [tx]
//!   writer.rs              sends what waits for all peers                                 [tx]
//!   listener.rs            TCP ports and Unix domain sockets that are listened on     [main] [listen]
//!   stream.rs              one stream: hello, messages for the server                [rx:peer]
//!   server_endpoint.rs     accepts connections, gives them to gRPC                   [listen]
//!   client.rs              a client's end of a stream                         [uplink] [main]
//!   raw.rs                 messages as bytes, for tests                                     -
//! server/                  ServerLoop: manifest in, plans out, states in, answers out [server]
//!   settings.rs            command line, environment, config file                      [main]
//!   peers.rs               streams, the agents among them, one outbox for each       [server]
//!   connections.rs         peers connect, report states and load, and disconnect     [server]
//!   requests.rs            one function for each kind of request                     [server]
//!   waiting_requests.rs    requests that wait for hooks, responses or their share    [server]
//!   parts_on_request.rs    parts of the state that are read by their name only       [server]
//!   shares.rs              what one requester may use: requests, time, events        [server]
//!   requester.rs           who sends a request, and whether it is allowed            [server]
//!   update.rs              the state that an update leads to                         [server]
//!   prepare.rs             checks of an update, what it means for workloads          [server]
//!   commit.rs              an accepted update is carried out                         [server]
//!   mutating_hooks.rs      outside programs that change or veto an update, timed       [hook]
//!   workloads.rs           desired and effective workloads, and what runs            [server]
//!   guarded/               updates that are staged, judged and put back as a whole   [server]
//!     accept.rs            requests: what is guarded, what joins, what is staged     [server]
//!     unit.rs              what an update changes, and the way back                        -
//!     staging.rs           what waits until all is staged                                  -
//!     messages.rs          lists for agents, and what they report                    [server]
//!     verdict.rs           what follows: good, kept, undone, stuck                   [server]
//!     shown.rs             states of what is being staged                            [server]
//!     stored.rs            updates over restarts                                     [server]
//!     view.rs              what clients read of them                                 [server]
//!   templates.rs           config items into rendered workloads                      [server]
//!   templates/cost.rs      what templates cost, what of the engine they may use      [server]
//!   modes.rs               which workloads run in the current mode of the vehicle    [server]
//!   essential.rs           the mode that a failed essential workload leads to        [server]
//!   plan.rs                old against new workloads, per agent                      [server]
//!   dependencies.rs        cycle check; who uses what                                [server]
//!   deletes.rs             what deletes wait for, and what agents were sent          [server]
//!   strays.rs              states of instances that are not wanted, bounded          [server]
//!   state_view.rs          reads: only what the masks select                         [server]
//!   timings.rs             when instances were accepted, started and ran             [server]
//!   state_store.rs         the desired state on disk, when that is wanted             [store]
//!   events.rs              event subscriptions; changes to events                    [server]
//!   log_campaigns.rs       which log stream belongs to which request                 [server]
//!   usage.rs               reads that wait for what agents' workloads use            [server]
//!   metrics.rs             the numbers of its metrics file                 [server] [metrics]
//! agent/                   starts the agent's threads, hands out the channels          [main]
//!   settings.rs            command line, environment, config file, run folder          [main]
//!   uplink.rs              connect, hello, reconnect                     [uplink] [rx:server]
//!   uplink_outbox.rs       what waits for the server                              [scheduler]
//!   request_queue.rs       requests of workloads among it                 [control] [uplink]
//!   events.rs              what the scheduler reacts to                                    -
//!   agent_manager.rs       messages of the server, states, listings: one `on_event` [scheduler]
//!   runtime_manager.rs     turns changes into wishes for control loops              [scheduler]
//!   runtime_manager/existing.rs  containers found at start: resume, replace, delete [scheduler]
//!   runtime_manager/listings.rs  which listings of engines are awaited    [scheduler]
//!   runtime_manager/staged.rs  what is prepared beside what runs, for updates [scheduler]
//!   runtime_manager/withhold.rs  stops what its conditions do not let run           [scheduler]
//!   runtime_manager/preparing.rs what may be prepared, and what an earlier agent has  [scheduler]
//!   staging.rs             what is staged for updates, and what was reported of it  [scheduler]
//!   preparation/           starts prepared while workloads wait: what is done next  [scheduler]
//!     levels.rs            how far a workload may be prepared                       [scheduler]
//!     job.rs               creates and initialises one, or removes it               [prep:name]
//!     prepared.rs          what was prepared, and how a job ended                            -
//!     handover.rs          from the scheduler to the control loop that starts it    [scheduler] [wl:name]
//!     host_paths.rs        paths that a container names, and whether they changed   [prep:name] [wl:name] [host-paths]
//!     record.rs            what the next agent has to know of it                    [prep:name] [scheduler]
//!   conditions.rs          activations and preconditions of workloads               [scheduler]
//!   workload_scheduler.rs  changes wait here for their dependencies                 [scheduler]
//!   workload_state_store.rs states of all workloads, hysteresis of our own          [scheduler]
//!   wish_slot.rs           the newest wish, state and probe for one control loop
//!                                              [scheduler] [watch:engine] [probes] [wl:name]
//!   workload_control_loop.rs create, retry, restart, update, delete one workload     [wl:name]
//!   workload_control_loop/search.rs    containers that must be gone before a start   [wl:name]
//!   workload_control_loop/start.rs     a start, and a start that failed              [wl:name]
//!   workload_control_loop/outdated.rs  stopped containers, removed after the start  [wl:name]
//!   workload_control_loop/prepared.rs  a start of what was prepared                  [wl:name]
//!   workload_control_loop/readiness.rs what the `lifecycle:` block changes           [wl:name]
//!   workload_control_loop/restart.rs   what follows from the container's states      [wl:name]
//!   workload_control_loop/delete.rs    a delete, an update's first half              [wl:name]
//!   create_watch.rs        a create under way: cancel, start slot, age              [wl:name]
//!   start_slots.rs         how many creates run at the same time         [wl:name] [scheduler]
//!   backoff.rs             retry and restart delays                                        -
//!   workload_files.rs      files written before the container starts                [wl:name]
//!   folder_removal.rs      folders removed, however deep they are          [wl:name] [removal]
//!   probes/                orders and results of probes: ready, alive, gone                -
//!     prober.rs            the loop that probes all workloads                        [probes]
//!     table.rs             when to probe, what the results amount to                 [probes]
//!     sockets.rs           connections, requests; commands               [probes] [exec:name]
//!     paths.rs             paths, which may hang                                      [paths]
//!   state_checker.rs       one listing per engine, reports what changed        [watch:engine]
//!   log_stream.rs          one container's log for one request                 [log:number]
//!   control_interface/     workloads that talk to the cluster: where it is opened, answers delivered
//!                                                                      [wl:name] [rx:server]
//!     poller.rs            the loop that serves all of them                         [control]
//!     pipes.rs             two FIFOs                                      [wl:name] [control]
//!     read_budget.rs      room for large messages that are being written           [control]
//!     session.rs           hello, requests, what follows from them                  [control]
//!     outbox.rs            what waits for one workload, bounded           [rx:server] [control]
//!     lasting.rs           which events and lines a workload requested    [rx:server] [control]
//!   resources.rs           CPU and memory of the node            [scheduler] [usage] [metrics]
//!   usage/mod.rs           what its workloads use, on request         [usage] [metrics] [scheduler]
//!   usage/cgroups.rs       the kernel's files about one container            [usage] [metrics]
//!   metrics.rs             its metrics file                                        [metrics]
//! runtime/                 the narrow waist to the engines, on the caller's thread
//!                                                               [wl:name] [list:engine]
//!   command.rs             calls of an engine's program, recorded and quoted
//!   engine_children.rs     engine processes that outlive their agent
//!   engine_cli.rs          the calls of one engine's program
//!   container_config.rs    the arguments that the runtimeConfig of a container turns into
//!   container_engine.rs    create, start and clean-up, common to podman and nerdctl
//!   images.rs              images got before the containers that need them      [prep:name]
//!   container_list.rs      listings to ExecutionState
//!   container_records.rs   which containers this agent made, and which only look so
//!   pod_states.rs          containers of pods to ExecutionState
//!   masking.rs             calls without the secrets in their options
//!   log_reader.rs          what an engine's log prints, line by line             [log:number]
//!   podman.rs podman_kube.rs containerd.rs   one engine each
//!   kube_manifest.rs       Kubernetes manifests: control interface, names of pods
//!   scripted_engine/mod.rs tests only: an engine's program as a shell script
//!   exit_watch.rs          pidfds: the end of processes, at once               [exits:engine]
//! cli/                     `ank`: prepares a command, connects, runs it                  [main]
//!   args.rs settings.rs    command line with help texts; ank.conf, environment, defaults
//!   args/values.rs         values of options
//!   session.rs             requests, responses, broadcast states     [main] [cli:rx] [cli:tx]
//!   completion.rs          candidates for shells, with names in the state of the server
//!   apply.rs get.rs set.rs run.rs logs.rs events.rs graph.rs blame.rs top.rs diff.rs   one file per verb
//!   blame/chart.rs         start times as a drawing
//!   modes.rs mode_check.rs modes of the server: `ank mode`; tags checked before an update is sent
//!   updates.rs             `get updates` and `rollback`: guarded updates of the server
//!   signals.rs             signals that end logs and events              [cli:signals] [main]
//!   update.rs              sends an update and waits; files and names of all changing verbs
//!   update/guarded.rs      waits for the end of an update that the server judges
//!   update/undo.rs         `apply --rollback`: puts back what was there before
//!   unified.rs             lines in which two texts differ
//!   state_input.rs state_output.rs   complete states as YAML and JSON
//!   rows.rs table.rs live.rs wait.rs   tables, frames, waiting until settled
//!   wait/trial.rs          judges an update by the states that are broadcast
//!   reasons.rs             which others a workload waits for
//!   timings.rs             how long starts took, what they waited for
//!   output.rs error.rs     streams and colours; texts, hints, exit codes
//! simulation/              tests only, one thread: whole clusters from a seed, in virtual time
//!   scenario.rs cluster.rs what happens, and to whom
//!   disturbances.rs        what goes wrong, and how often
//!   life.rs                one life of an agent: real scheduler, control loops, state checker
//!   network.rs orders.rs   connections that delay and break; what agents were sent
//!   modes.rs               switches of the mode, a hook that assigns agents, what is in force then
//!   wishes.rs asked.rs     what commanders and workloads requested of the server
//!   readiness.rs           which instances were found ready, counted once more
//!   engine.rs sim_connector.rs coroutine.rs   an engine per node, its calls that take time
//!   engine/creates.rs      containers are made, prepared and started
//!   engine/starts.rs engine/ends.rs   never two containers of one workload; how they end
//!   subscriber.rs disk.rs  commanders that follow events; where a server keeps its state
//!   guards.rs              guarded updates, worked out once more
//!   settled.rs cluster/checks.rs   what must hold once it is quiet, and at any time
//!   trace.rs               what happened before a failure
//!   shrink.rs              a seed that fails, run with less and less
//!   manual_clock.rs        time that moves only on request
//!   fake_probes.rs         checks whose results a test or an engine decides
//!   fake_connector.rs stepped_agent.rs   a container engine and an agent for unit tests
//! ```
//!
//! # Threads and channels
//!
//! Each piece of state has one owner: `server` in the server, `scheduler` in the agent, one `wl:<name>` per
//! workload. All else goes through bounded channels. Reports flow up and may block, wishes flow down and never
//! do; no thread sends to itself. A thread ends when its owner drops what only the owner can send on, or closes
//! the socket it reads.
//!
//! Files of tests (`tests.rs` and `tests/` beside a module) are not in the map.
// A build of one component leaves unused what the wire shares between the sides; the full build has all uses.
#![cfg_attr(not(all(feature = "server", feature = "agent", feature = "cli")), allow(dead_code, unused_imports))]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

#[cfg(feature = "agent")]
pub mod agent;
#[cfg(feature = "cli")]
pub mod cli;
pub mod limits;
pub mod model;
pub mod platform;
#[cfg(feature = "agent")]
pub mod runtime;
#[cfg(feature = "server")]
pub mod server;
#[cfg(all(test, feature = "agent"))]
pub mod simulation;
pub mod wire;
