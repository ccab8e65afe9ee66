//! The engine's folder: one JSON file per container, replaced atomically under one lock; the log of
//! all commands.
//!
//! ```text
//! lock             flock, held for every read-change-write
//! script.json      written by the test, see script.rs
//! calls.log        one JSON line per start and end of a command
//! containers/<id>  one container
//! logs/<id>        what it wrote
//! images.json      the images, see images.rs
//! pods/<id>        the name of one pod
//! volumes/<name>   one volume as `volume inspect` prints it
//! finish/<name>    the test's order to end the container of workload <name>; content is the exit code
//! ```
//!
//! Thread: any process of the engine. Owns: the files above.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use crate::arguments::Invocation;
use crate::container::Behaviour;

pub struct Store {
    dir: PathBuf,
}

/// One container as stored.
pub struct Container {
    pub id: String,
    pub name: String,
    pub image: String,
    pub command: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// podman's words: `created`, `running`, `paused`, `exited`.
    pub state: String,
    pub exit_code: i64,
    /// Process of the container, 0 when it does not run.
    pub pid: u32,
    /// When the process began, as the kernel writes it. It distinguishes the process from a later
    /// one with the same pid.
    pub pid_begin: u64,
    /// Where the pid is written at each start; empty for nowhere.
    pub pid_file: String,
    pub stop_seconds: u64,
    /// Made with `--rm`.
    pub removes_itself: bool,
    pub behaviour: String,
    /// Id and name of the pod it belongs to; empty outside of pods.
    pub pod: String,
    pub pod_name: String,
    pub created: u64,
    pub started: u64,
    /// Seconds since 1970; `NEVER` before the first exit.
    pub exited: i64,
}

/// One pod as stored.
pub struct Pod {
    pub id: String,
    pub name: String,
}

/// How podman writes a time that has not come yet: the year 1.
const NEVER: i64 = -62_135_596_800;

impl Container {
    fn from(value: &Value) -> Option<Self> {
        let texts = |list: &Value| -> Vec<String> {
            list.as_array()
                .into_iter()
                .flatten()
                .filter_map(|item| item.as_str().map(str::to_owned))
                .collect()
        };
        let labels = value["Labels"].as_object()?.iter();
        Some(Self {
            id: value["Id"].as_str()?.to_owned(),
            name: texts(&value["Names"]).into_iter().next()?,
            image: value["Image"].as_str()?.to_owned(),
            command: texts(&value["Command"]),
            labels: labels
                .map(|(k, v)| (k.clone(), v.as_str().unwrap_or("").to_owned()))
                .collect(),
            state: value["State"].as_str()?.to_owned(),
            exit_code: value["ExitCode"].as_i64()?,
            pid: u32::try_from(value["Pid"].as_u64()?).ok()?,
            pid_begin: value["PidBegin"].as_u64()?,
            pid_file: value["PidFile"].as_str()?.to_owned(),
            stop_seconds: value["StopSeconds"].as_u64()?,
            removes_itself: value["AutoRemove"].as_bool()?,
            behaviour: value["Behaviour"].as_str()?.to_owned(),
            pod: value["Pod"].as_str()?.to_owned(),
            pod_name: value["PodName"].as_str()?.to_owned(),
            created: value["Created"].as_u64()?,
            started: value["StartedAt"].as_u64()?,
            exited: value["ExitedAt"].as_i64()?,
        })
    }

    /// The entry of `podman ps --format=json`, with the fields of podman 4.3.1.
    pub fn as_listed(&self) -> Value {
        json!({
            "AutoRemove": self.removes_itself, "Command": self.command, "CreatedAt": "1 second ago", "Created": self.created,
            "Exited": self.state == "exited", "ExitedAt": self.exited, "ExitCode": self.exit_code,
            "Id": self.id, "Image": self.image, "ImageID": "", "IsInfra": false,
            "Labels": if self.labels.is_empty() { Value::Null } else { json!(self.labels) },
            "Mounts": [], "Names": [self.name], "Namespaces": {}, "Networks": [], "Pid": self.pid, "Pod": self.pod,
            "PodName": self.pod_name, "Ports": null, "Size": null, "StartedAt": self.started, "State": self.state,
            "Status": self.state,
        })
    }

    /// What a template of `podman ps` or `nerdctl ps` can print.
    pub fn as_reported(&self) -> Value {
        let mut plain = self.as_listed();
        plain["ID"] = json!(self.id);
        json!({ "ID": self.id, "Names": self.name, "ListContainer": plain })
    }

    /// What a template of `nerdctl inspect` can print.
    pub fn as_nerdctl_inspects(&self) -> Value {
        let finished = if self.exited > 0 {
            rfc3339(self.exited)
        } else {
            "0001-01-01T00:00:00Z".to_owned()
        };
        let mut labels = self.labels.clone();
        labels.insert(
            "nerdctl/auto-remove".to_owned(),
            self.removes_itself.to_string(),
        );
        labels.insert(
            "nerdctl/stop-timeout".to_owned(),
            self.stop_seconds.to_string(),
        );
        json!({ "ID": self.id, "Name": self.name, "Config": { "Labels": labels }, "State": {
            "Status": self.state, "ExitCode": self.exit_code, "Pid": self.pid, "FinishedAt": finished,
        }})
    }

    fn as_stored(&self) -> Value {
        let mut value = self.as_listed();
        value["Labels"] = json!(self.labels);
        value["PidFile"] = json!(self.pid_file);
        value["StopSeconds"] = json!(self.stop_seconds);
        value["Behaviour"] = json!(self.behaviour);
        value["PidBegin"] = json!(self.pid_begin);
        value
    }

    /// Podman's filters `label=key[=value]`, `name=`, `id=`, `status=`.
    pub fn matches(&self, filter: &str) -> bool {
        match filter.split_once('=') {
            Some(("label", label)) => match label.split_once('=') {
                Some((key, value)) => self.labels.get(key).is_some_and(|have| have == value),
                None => self.labels.contains_key(label),
            },
            Some(("name", name)) => self.name.contains(name),
            Some(("id", id)) => self.id.starts_with(id),
            Some(("status", state)) => self.state == state,
            _ => false,
        }
    }

    /// Returns whether it has a process.
    pub fn is_active(&self) -> bool {
        matches!(self.state.as_str(), "running" | "paused")
    }

    /// The workload: the name of its pod, which tests give to the pod, or the begin of its label.
    pub fn workload(&self) -> Option<String> {
        if !self.pod_name.is_empty() {
            return Some(self.pod_name.clone());
        }
        self.labels
            .get("name")
            .and_then(|name| name.split('.').next())
            .map(str::to_owned)
    }
}

impl Store {
    pub fn new(dir: PathBuf) -> Self {
        for folder in [
            "containers",
            "logs",
            "finish",
            "pods",
            "volumes",
            "released",
        ] {
            // Only below an existing folder: a removed one is the sign to end.
            if dir.is_dir() {
                let _ = fs::create_dir(dir.join(folder));
            }
        }
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// True when the test removed the folder: everything that still runs has to end.
    pub fn is_gone(&self) -> bool {
        !self.dir.is_dir()
    }

    /// Creates the container, or says why podman would not.
    pub fn create(
        &self,
        run: &Invocation,
        image: &str,
        behaviour: &Behaviour,
    ) -> Result<String, String> {
        let id = random_id();
        let name = run
            .option(&["--name"])
            .map_or_else(|| id[..12].to_owned(), str::to_owned);
        let _lock = self.lock();
        if let Some(other) = self
            .list()
            .into_iter()
            .find(|container| container.name == name)
        {
            return Err(format!(
                "creating container storage: the container name \"{name}\" is already in use by {}. You have to \
                 remove that container to be able to reuse that name: that name is already in use",
                other.id
            ));
        }
        self.write(&Container {
            name,
            image: image.to_owned(),
            command: run.positional[1..].to_vec(),
            labels: run.labels().into_iter().collect(),
            state: "created".to_owned(),
            exit_code: 0,
            pid: 0,
            pid_begin: 0,
            pid_file: run.option(&["--pidfile"]).unwrap_or_default().to_owned(),
            stop_seconds: run
                .option(&["--stop-timeout"])
                .and_then(|text| text.parse().ok())
                .unwrap_or(10),
            removes_itself: run.flag(&["--rm"]),
            behaviour: behaviour.text.clone(),
            pod: String::new(),
            pod_name: String::new(),
            created: now_ms() / 1000,
            started: 0,
            exited: NEVER,
            id: id.clone(),
        });
        Ok(id)
    }

    /// `None` when there is a pod of that name.
    pub fn create_pod(&self, name: &str) -> Option<Pod> {
        let _lock = self.lock();
        if self.pods().iter().any(|pod| pod.name == name) {
            return None;
        }
        let pod = Pod {
            id: random_id(),
            name: name.to_owned(),
        };
        replace(&self.path("pods").join(&pod.id), name);
        Some(pod)
    }

    /// Creates a container of `pod`, which is not started yet. Returns its id.
    pub fn create_in_pod(
        &self,
        pod: &Pod,
        name: &str,
        image: &str,
        behaviour: &Behaviour,
    ) -> String {
        let id = random_id();
        let _lock = self.lock();
        self.write(&Container {
            name: name.to_owned(),
            image: image.to_owned(),
            command: Vec::new(),
            labels: BTreeMap::new(),
            state: "created".to_owned(),
            exit_code: 0,
            pid: 0,
            pid_begin: 0,
            pid_file: String::new(),
            stop_seconds: 10,
            removes_itself: false,
            behaviour: behaviour.text.clone(),
            pod: pod.id.clone(),
            pod_name: pod.name.clone(),
            created: now_ms() / 1000,
            started: 0,
            exited: NEVER,
            id: id.clone(),
        });
        id
    }

    pub fn pods(&self) -> Vec<Pod> {
        let mut pods = Vec::new();
        let Ok(files) = fs::read_dir(self.path("pods")) else {
            return pods;
        };
        for file in files.flatten() {
            let id = file.file_name().to_string_lossy().into_owned();
            // A file that is being written has another name.
            if !id.contains('.')
                && let Ok(name) = fs::read_to_string(file.path())
            {
                pods.push(Pod { id, name });
            }
        }
        pods
    }

    pub fn remove_pod(&self, id: &str) {
        let _lock = self.lock();
        let _ = fs::remove_file(self.path("pods").join(id));
    }

    pub fn list(&self) -> Vec<Container> {
        let mut found = Vec::new();
        let Ok(files) = fs::read_dir(self.path("containers")) else {
            return found;
        };
        for file in files.flatten() {
            let id = file.file_name().to_string_lossy().into_owned();
            // A file that is being written has another name.
            if !id.contains('.') {
                found.extend(self.read(&id));
            }
        }
        found.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        found
    }

    pub fn read(&self, id: &str) -> Option<Container> {
        let text = fs::read_to_string(self.path("containers").join(id)).ok()?;
        Container::from(&serde_json::from_str(&text).ok()?)
    }

    /// The container with this name, this id, or an id that begins so.
    pub fn find(&self, name_or_id: &str) -> Option<Container> {
        // First by its id: otherwise a thousand commands would read a thousand files each.
        if let Some(container) = self.read(name_or_id) {
            return Some(container);
        }
        let all = self.list();
        let exact = all
            .iter()
            .position(|container| container.name == name_or_id || container.id == name_or_id);
        let index = exact.or_else(|| {
            all.iter()
                .position(|container| container.id.starts_with(name_or_id))
        })?;
        all.into_iter().nth(index)
    }

    /// Changes a container under the lock; does nothing when it was removed.
    pub fn change(&self, id: &str, change: impl FnOnce(&mut Container)) {
        let _lock = self.lock();
        if let Some(mut container) = self.read(id) {
            change(&mut container);
            self.write(&container);
        }
    }

    pub fn remove(&self, id: &str) {
        let _lock = self.lock();
        let _ = fs::remove_file(self.path("containers").join(id));
        let _ = fs::remove_file(self.log_file(id));
    }

    pub fn log_file(&self, id: &str) -> PathBuf {
        self.path("logs").join(id)
    }

    /// Counts one more use of a rule and returns the number of uses, this one included.
    pub fn count_use(&self, rule: &str) -> u64 {
        let _lock = self.lock();
        let file = self.path("rule_uses.json");
        let mut uses: Value = fs::read_to_string(&file)
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or(json!({}));
        let count = uses[rule].as_u64().unwrap_or(0) + 1;
        uses[rule] = json!(count);
        replace(&file, &uses.to_string());
        count
    }

    pub fn log_start(&self, argv: &[String]) {
        self.log(&json!({ "pid": std::process::id(), "at_ms": now_ms(), "argv": argv }));
    }

    pub fn log_end(&self, code: i32) {
        self.log(&json!({ "pid": std::process::id(), "at_ms": now_ms(), "exit": code }));
    }

    fn log(&self, line: &Value) {
        if let Ok(mut file) = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.path("calls.log"))
        {
            let _ = file.write_all(format!("{line}\n").as_bytes());
        }
    }

    fn write(&self, container: &Container) {
        replace(
            &self.path("containers").join(&container.id),
            &container.as_stored().to_string(),
        );
    }

    /// Held until dropped; the kernel frees it when the process is killed.
    pub fn lock(&self) -> Option<File> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.path("lock"))
            .ok()?;
        flock(&file, FlockOperation::LockExclusive).ok()?;
        Some(file)
    }
}

/// Replaces a file. A reader sees the old or the new content, never a part.
fn replace(file: &Path, content: &str) {
    let temporary = file.with_extension(format!("{}.tmp", std::process::id()));
    if fs::write(&temporary, content).is_ok() {
        let _ = fs::rename(&temporary, file);
    }
}

pub fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time as nerdctl writes it.
fn rfc3339(seconds: i64) -> String {
    let mut day = seconds / 86_400;
    let second = seconds % 86_400;
    let mut year = 1970;
    let mut month = 0;
    while day >= days_of(year, month) {
        day -= days_of(year, month);
        month += 1;
        if month == 12 {
            year += 1;
            month = 0;
        }
    }
    let hour = second / 3600;
    let minute = second / 60 % 60;
    format!(
        "{year}-{:02}-{:02}T{hour:02}:{minute:02}:{:02}.123456789Z",
        month + 1,
        day + 1,
        second % 60
    )
}

/// The number of days in a month; January is 0.
fn days_of(year: i64, month: usize) -> i64 {
    let is_leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if month == 1 && is_leap_year {
        return 29;
    }
    [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month]
}

fn random_id() -> String {
    let mut bytes = [0_u8; 32];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    assert!(read.is_ok(), "/dev/urandom must be readable");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
