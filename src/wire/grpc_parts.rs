//! The parts of the gRPC library that get into our programs. Without this file these would be
//! larger by about a seventh, and `./justw size` holds them to a size that docs/performance.md
//! promises.
//!
//! The library collects its parts in one function, `grpc_core::BuildCoreConfiguration`: name
//! resolvers, load balancers, retries, proxies, fault injection. Both ends of ours get a connected
//! socket (`ChannelBuilder::connect_from_fd`, `Server::add_channel_from_fd`), so none of these can
//! ever run. This file defines that function again, with the parts that such channels need; the
//! linker then takes neither the library's own nor what only that refers to. A version of the
//! library with other names does not link, and then this file has to be compared with it.
//!
//! Thread: the one that first uses the library, within its initialisation.

#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};

/// `grpc_core::CoreConfiguration::Builder`, which the parts enter themselves in. Only handed on.
type Builder = *mut c_void;

// SAFETY: the names and arguments are those of the library's own declarations; another version of
// it does not link.
unsafe extern "C" {
    /// The event engine, where sockets are read and timers run.
    #[link_name = "_ZN17grpc_event_engine12experimental44RegisterEventEngineChannelArgPreconditioningEPN9grpc_core17CoreConfiguration7BuilderE"]
    fn register_event_engine(builder: Builder);
    /// `:authority` of requests.
    #[link_name = "_ZN9grpc_core29RegisterClientAuthorityFilterEPNS_17CoreConfiguration7BuilderE"]
    fn register_client_authority(builder: Builder);
    /// What makes gRPC of HTTP/2: methods, status, compression.
    #[link_name = "_ZN9grpc_core19RegisterHttpFiltersEPNS_17CoreConfiguration7BuilderE"]
    fn register_http(builder: Builder);
    /// The largest message.
    #[link_name = "_ZN9grpc_core25RegisterMessageSizeFilterEPNS_17CoreConfiguration7BuilderE"]
    fn register_message_size(builder: Builder);
    /// The quota that connections count their memory against.
    #[link_name = "_ZN9grpc_core21RegisterResourceQuotaEPNS_17CoreConfiguration7BuilderE"]
    fn register_resource_quota(builder: Builder);
    /// The ends of every channel: its calls and its connection.
    #[link_name = "_ZN9grpc_core16RegisterBuiltinsEPNS_17CoreConfiguration7BuilderE"]
    fn register_builtins(builder: Builder);
    /// Starts or ends the thread of the library's older timers, once the library is initialised.
    #[link_name = "_Z32grpc_timer_manager_set_threadingb"]
    fn set_timer_thread(enabled: bool);
    /// Starts or ends the threads that the library hands work to, once it is initialised.
    #[link_name = "_ZN9grpc_core8Executor15SetThreadingAllEb"]
    fn set_executor_threads(enabled: bool);
}

/// Ends the thread of the library's older timers, which wakes once a second. To be called once, after
/// the initialisation of the library and before its first channel; without that thread this would
/// never return.
///
/// Nothing that our programs use sets such a timer (`grpc_timer_init`): that is done where names are
/// resolved, where the library itself connects, listens or watches idle channels, and for the
/// deadlines of calls, which are not among the parts above. So the server does not end a call at the
/// deadline of its client; the client does.
pub(crate) fn end_timer_thread() {
    // SAFETY: waits for that thread, and may be called by any other at any time until the library
    // is shut down, which our programs never do.
    unsafe { set_timer_thread(false) };
}

/// Ends the two threads that other threads of the library hand work to: one of them resolves names,
/// which our programs do themselves. Without them each thread does its own work, as the library
/// does it in a child after `fork`. To be called once, before the first channel.
///
/// Only in a client. In a server that is short of CPU time, calls of hostile clients were then
/// freed later than new ones came: headers that unpack to megabytes took 440 MiB. The gate bounds
/// such headers since then; whether a server could do without these threads now is not measured.
pub(crate) fn end_executor_threads() {
    // SAFETY: as in `end_timer_thread`.
    unsafe { set_executor_threads(false) };
}

/// Takes the place of the library's `grpc_core::BuildCoreConfiguration`, in the same order.
// SAFETY: nothing else has this name in the program: the linker takes no second definition.
#[unsafe(export_name = "_ZN9grpc_core22BuildCoreConfigurationEPNS_17CoreConfiguration7BuilderE")]
extern "C" fn build_core_configuration(builder: Builder) {
    // SAFETY: the library calls this with its builder, and so it does with each of these functions.
    unsafe {
        register_event_engine(builder);
        register_client_authority(builder);
        register_http(builder);
        register_message_size(builder);
        register_resource_quota(builder);
        register_builtins(builder);
    }
}

/// Takes the place of the library's `gpr_cpu_num_cores`. For each core it would keep two lists of
/// timers, each of which wakes a thread once a second even when it is empty, so an idle program on
/// eight cores would be woken 16 times a second for nothing. Our programs have few timers and one
/// thread that polls. With 0, for a number that is not known, it would have one thread where a
/// large message needs two.
// SAFETY: nothing else has this name in the program: the linker takes no second definition.
#[unsafe(export_name = "gpr_cpu_num_cores")]
extern "C" fn cores() -> c_uint {
    1
}

/// Takes the place of the library's `gpr_cpu_current_cpu`: numbers below that of the cores, or 0.
// SAFETY: as above.
#[unsafe(export_name = "gpr_cpu_current_cpu")]
extern "C" fn current_core() -> c_uint {
    0
}
