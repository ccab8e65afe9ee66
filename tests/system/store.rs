//! A real podman with a store of its own, prepared so that nothing is pulled and the machine's own
//! store is not touched.
//!
//! What the configuration is for, found on Debian 12 with podman 4.3.1 as root:
//!
//! - `runtime`: that of `ANKAIOS_TEST_RUNTIME`, else `runc`, since `crun` refuses a hybrid cgroup
//!   mount. Own `default_ulimits`: podman's default limits are refused where the hard limits are
//!   lower.
//! - `lock_type = "file"` and own `tmp_dir`: by default all stores share one table of locks in
//!   `/dev/shm`.
//! - own `graphroot`, `runroot`, `static_dir`, `volume_path`, `network_config_dir`: stores of
//!   parallel tests do not meet. `static_dir` has to be `<graphroot>/libpod`: when a container
//!   ends, conmon calls `podman --root=... container cleanup`, which looks there whatever the
//!   configuration says. Elsewhere the container would stay `stopped` instead of becoming `exited`.
//! - `netns = "none"`: the network is not what is tested, and without it a start takes half the
//!   time. A workload that wants one says `--network=bridge` in its `commandOptions`; that works
//!   with this configuration as well. A store with networks has podman's default, in a network of
//!   its own in place of the machine's: bridges, rules and published ports are there only and go
//!   with it.
//! - `registries.conf` resolves `alpine:latest` to `docker.io/library/alpine:latest`, which is made
//!   from the static busybox. A missing image under `localhost/` is refused at once, because
//!   nothing may be pulled from there.
//!
//! Thread: the test's. Owns: the store. On drop all pods and containers are removed and the store
//! is deleted.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::podman::{empty_store, environment, run_in};
use crate::support::small_disk::SmallDisk;
use crate::support::{Cluster, leave_out, listing, scratch, wait_until};

/// Kind of folder that holds a store.
const KIND: &str = "podman";

/// A command of a shell that continues until its end. It ends at once on SIGTERM, which a shell
/// without a handler would not, being process 1.
pub const PATIENT: &str = "trap 'exit 0' TERM; while true; do sleep 0.1; done";
/// Takes twice as much memory again and again.
pub const GREEDY: &str = "x=0123456789; while :; do x=$x$x; done";

/// A manifest of workloads on `agent`, each running `command` in a shell.
pub fn shells(agent: &str, names: &[String], command: &str) -> String {
    let one = |name: &String| {
        format!(
            "  {name}:\n    agent: {agent}\n    runtime: podman\n    runtimeConfig: |\n      image: alpine:latest\n      \
             commandOptions: [\"--stop-timeout\", \"1\"]\n      commandArgs: [sh, -c, \"{command}\"]\n"
        )
    };
    format!(
        "apiVersion: v1\nworkloads:\n{}",
        names.iter().map(one).collect::<String>()
    )
}

/// The manifest of one such workload on `agent_A`.
pub fn shell(name: &str, command: &str) -> String {
    shells("agent_A", &[name.to_owned()], command)
}

pub struct Podman {
    /// The small disk below `folder`, if it has one. It ends first.
    disk: Option<SmallDisk>,
    folder: TempDir,
    network: Option<Network>,
}

/// A network that only programs started in it see. Podman's name servers have one folder on a
/// machine, where those of other networks would be found, so that is another one in there as well.
struct Network {
    /// Keeps it.
    holder: Child,
}

impl Network {
    /// `None` where making one is not allowed.
    fn new() -> Option<Self> {
        let mut command = Command::new("unshare");
        let folder = "/run/containers/networks";
        let empty = format!("mkdir -p {folder} && mount -t tmpfs none {folder}");
        let hold = format!("{empty} && ip link set lo up && echo up && exec sleep 3600");
        command.args(["--net", "--mount", "sh", "-c", &hold]);
        let mut holder = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let output = holder.stdout.take().expect("its output is a pipe");
        let network = Self { holder };
        let mut line = String::new();
        BufReader::new(output)
            .read_line(&mut line)
            .is_ok_and(|_| line == "up\n")
            .then_some(network)
    }

    /// The program that runs its arguments there.
    fn wrapper(&self) -> [String; 4] {
        [
            "nsenter",
            &format!("--target={}", self.holder.id()),
            "--net",
            "--mount",
        ]
        .map(str::to_owned)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Podman {
    /// A new store with the image `alpine:latest`.
    ///
    /// # Panics
    /// When podman or busybox is not installed, or podman refuses the configuration.
    pub fn new() -> Self {
        let folder = scratch::folder(KIND);
        write_configuration(folder.path(), "netns = \"none\"");
        Self::with_store(folder, None)
    }

    /// As [`Self::new`], on a disk of `kib` KiB. `None` where mounting is not allowed; the test is
    /// left out.
    pub fn on_small_disk(kib: usize) -> Option<Self> {
        let folder = scratch::folder(KIND);
        write_configuration(folder.path(), "netns = \"none\"");
        let disk = SmallDisk::mount(&folder.path().join("store"), kib)?;
        let mut podman = Self::with_store(folder, None);
        podman.disk = Some(disk);
        Some(podman)
    }

    /// A store whose containers have podman's default network unless they say otherwise. `None`
    /// where that cannot be; the test is left out.
    pub fn with_networks() -> Option<Self> {
        let has = |name: &str| {
            let folders = [
                "/usr/sbin",
                "/usr/bin",
                "/usr/local/sbin",
                "/usr/lib/podman",
                "/usr/libexec/podman",
            ];
            let path = std::env::var_os("PATH").expect("a path");
            let folders = std::env::split_paths(&path).chain(folders.map(Into::into));
            folders.into_iter().any(|folder| folder.join(name).exists())
        };
        if let Some(missing) = ["netavark", "aardvark-dns", "iptables"]
            .into_iter()
            .find(|name| !has(name))
        {
            leave_out(
                "networks of containers",
                &format!("'{missing}' is not installed; `./justw setup` does that"),
            );
            return None;
        }
        let Some(network) = Network::new() else {
            leave_out(
                "networks of containers",
                "a network of its own needs the rights of root",
            );
            return None;
        };
        let folder = scratch::folder(KIND);
        write_configuration(folder.path(), "");
        Some(Self::with_store(folder, Some(network)))
    }

    fn with_store(folder: TempDir, network: Option<Network>) -> Self {
        let archive = folder.path().join("alpine.tar");
        write_image(folder.path(), &archive);
        let path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let archive = archive.to_string_lossy().into_owned();
        let image = "docker.io/library/alpine:latest";
        let import = [
            "import",
            "--quiet",
            "--change",
            path,
            "--change",
            "CMD /bin/sh",
            &archive,
            image,
        ];
        // A store inside a container cannot always use overlay; vfs is slow and works everywhere.
        let imported = ["overlay", "vfs"].iter().map(|driver| {
            write_storage_configuration(folder.path(), driver);
            run_in(&[], folder.path(), &import)
        });
        let failures: Vec<String> = imported.map_while(Result::err).collect();
        assert!(
            failures.len() < 2,
            "podman cannot make an image in a store of its own: {failures:#?}"
        );
        Self {
            disk: None,
            folder,
            network,
        }
    }

    /// The file that images are made of.
    pub fn image_archive(&self) -> String {
        self.folder
            .path()
            .join("alpine.tar")
            .to_string_lossy()
            .into_owned()
    }

    /// The command that runs its arguments in the network of this store; empty when that is the
    /// machine's.
    pub fn wrapper(&self) -> Vec<String> {
        self.network
            .as_ref()
            .map_or_else(Vec::new, |network| network.wrapper().to_vec())
    }

    /// The environment that selects this store.
    pub fn environment(&self) -> Vec<(String, String)> {
        environment(self.folder.path())
    }

    /// Runs podman on this store and returns its stdout.
    ///
    /// # Panics
    /// When podman fails.
    pub fn run(&self, arguments: &[&str]) -> String {
        let ran = run_in(&self.wrapper(), self.folder.path(), arguments);
        ran.unwrap_or_else(|error| panic!("podman {arguments:?}: {error}"))
    }

    /// Runs podman on this store and returns its stdout; `None` when podman fails.
    pub fn try_run(&self, arguments: &[&str]) -> Option<String> {
        run_in(&self.wrapper(), self.folder.path(), arguments).ok()
    }

    /// Pauses a container. The kernel freezes it only when all its processes are ready for it, and
    /// runc stops trying after a moment: on a busy machine that moment can be too short.
    pub fn pause(&self, id: &str) {
        wait_until(&format!("'{id}' is paused"), || {
            self.try_run(&["pause", id]).is_some()
        });
    }

    /// The output of a container, both streams, or the error.
    pub fn logs(&self, id: &str) -> String {
        let output = Command::new("podman")
            .args(["logs", id])
            .envs(self.environment())
            .output();
        output.map_or_else(
            |error| error.to_string(),
            |output| {
                String::from_utf8_lossy(&output.stdout).into_owned()
                    + &String::from_utf8_lossy(&output.stderr)
            },
        )
    }

    /// All containers, as `podman ps` lists them.
    pub fn containers(&self) -> Vec<Value> {
        let text = self.run(&["ps", "--all", "--format=json"]);
        serde_json::from_str(&text).expect("podman lists containers as JSON")
    }

    /// The containers of one workload, in any state.
    pub fn containers_of(&self, workload: &str) -> Vec<Value> {
        listing::containers_of(self.containers(), workload)
    }

    /// Pid and id of the only container of `workload`.
    pub fn only_container(&self, workload: &str) -> (u32, String) {
        listing::only_container(self.containers(), workload)
    }
}

impl Cluster {
    /// As `prepare`, with agents that use `podman`, which has to outlive the cluster: nothing is
    /// created after it then.
    pub fn prepare_on(podman: &Podman) -> Self {
        let mut cluster = Self::prepare();
        let mut variables = podman.environment();
        variables.push((
            "PATH".to_owned(),
            std::env::var("PATH").expect("PATH is set"),
        ));
        cluster.agent_env = variables;
        cluster
    }

    /// Applies a manifest and waits until these of its workloads run.
    pub fn apply_until_run(&self, manifest: &str, names: &[&str]) {
        self.apply(manifest);
        self.wait_until_run(names);
    }

    /// As `start`, with agents that use `podman` and have these lines in their config file.
    pub fn start_on(podman: &Podman, agents: &[&str], config: &str) -> Self {
        let mut cluster = Self::prepare_on(podman);
        cluster.agent_config = config.to_owned();
        cluster.start_all(agents);
        cluster
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        if self.network.is_some() {
            // What belongs to the network of a container is taken away where it is.
            let _ = run_in(
                &self.wrapper(),
                self.folder.path(),
                &["rm", "--all", "--force", "--time=0"],
            );
        }
        empty_store(self.folder.path());
    }
}

fn write_configuration(folder: &Path, network: &str) {
    for name in ["run", "tmp", "networks"] {
        fs::create_dir(folder.join(name)).expect("own folder is writable");
    }
    let base = folder.display();
    let runtime = std::env::var("ANKAIOS_TEST_RUNTIME").unwrap_or_else(|_| "runc".to_owned());
    let containers = format!(
        "[containers]\n\
         default_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n\
         {network}\n\
         log_driver = \"k8s-file\"\n\
         [engine]\n\
         runtime = \"{runtime}\"\n\
         cgroup_manager = \"cgroupfs\"\n\
         events_logger = \"file\"\n\
         lock_type = \"file\"\n\
         tmp_dir = \"{base}/tmp\"\n\
         static_dir = \"{base}/store/libpod\"\n\
         volume_path = \"{base}/volumes\"\n\
         image_copy_tmp_dir = \"{base}/tmp\"\n\
         [network]\n\
         network_backend = \"netavark\"\n\
         network_config_dir = \"{base}/networks\"\n"
    );
    let registries = "unqualified-search-registries = [\"docker.io\"]\n\
                      short-name-mode = \"disabled\"\n\
                      [[registry]]\n\
                      location = \"localhost\"\n\
                      blocked = true\n";
    for (name, text) in [
        ("containers.conf", containers.as_str()),
        ("registries.conf", registries),
    ] {
        fs::write(folder.join(name), text).expect("own folder is writable");
    }
}

/// An empty store of that driver.
fn write_storage_configuration(folder: &Path, driver: &str) {
    // podman's database keeps to the driver it was made with.
    let _ = fs::remove_dir_all(folder.join("store"));
    let base = folder.display();
    let text = format!(
        "[storage]\ndriver = \"{driver}\"\ngraphroot = \"{base}/store\"\nrunroot = \"{base}/run\"\n"
    );
    fs::write(folder.join("storage.conf"), text).expect("own folder is writable");
}

/// Packs a root file system: the static busybox with a link for each of its commands.
fn write_image(folder: &Path, archive: &Path) {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .iter()
        .map(Path::new)
        .find(|path| path.is_file());
    let busybox = busybox.expect("the package busybox-static is needed");
    let root = folder.join("rootfs");
    for name in ["bin", "etc", "tmp"] {
        fs::create_dir_all(root.join(name)).expect("own folder is writable");
    }
    fs::copy(busybox, root.join("bin/busybox")).expect("busybox can be copied");
    let list = Command::new(busybox)
        .arg("--list")
        .output()
        .expect("busybox runs");
    for applet in String::from_utf8_lossy(&list.stdout)
        .lines()
        .filter(|applet| *applet != "busybox")
    {
        symlink("busybox", root.join("bin").join(applet)).expect("own folder is writable");
    }
    let packed = Command::new("tar")
        .arg("-C")
        .arg(&root)
        .arg("-cf")
        .arg(archive)
        .arg(".")
        .status();
    assert!(
        packed.is_ok_and(|status| status.success()),
        "tar packs the image"
    );
}
