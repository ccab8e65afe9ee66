//! Control groups as engines make them, in recorded trees: which files are read, and when nothing
//! is.

use super::*;
use ankaios_runtime::ContainerId;

const ID: &str = "3f9c1d0a7b5e4826a1c0ffee9d8b7a6c5e4f3d2c1b0a99887766554433221100";
const POD: &str = "aa00bb11cc22dd33ee44ff5566778899aa00bb11cc22dd33ee44ff5566778899";

/// A hybrid system as Debian without systemd has it: controllers in hierarchies of version 1, one
/// of version 2 beside them.
const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:2 - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
/// As systemd mounts version 1: `cpu` and `cpuacct` together.
const V1: &str = "\
28 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:11 - cgroup cgroup rw,cpu,cpuacct
29 25 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:12 - cgroup cgroup rw,memory
30 25 0:27 / /sys/fs/cgroup/pids rw,nosuid shared:13 - cgroup cgroup rw,pids
";
const V2: &str = "24 22 0:22 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";

const V1_MEMORY_STAT: &str = "cache 8192000\nrss 3145728\ninactive_file 4096\nactive_file 0\nhierarchical_memory_limit \
                              9223372036854771712\ntotal_cache 8192000\ntotal_rss 3145728\ntotal_inactive_file 7000000\n";
const V2_MEMORY_STAT: &str =
    "anon 3145728\nfile 8192000\nkernel 600000\ninactive_anon 3100000\ninactive_file 7000000\n";
const V2_CPU_STAT: &str =
    "usage_usec 1234567\nuser_usec 1000000\nsystem_usec 234567\nnr_periods 0\n";

/// A tree of files, and the process that is read.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(mounts: &str, groups: &str) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.file("proc/self/mountinfo", mounts);
        tree.file("proc/7/cgroup", groups);
        // A program may have any name.
        let stat = "7 (sh) (odd) S 1 7 7 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 4711 1000 50 18446744073709551615 1 1";
        tree.file("proc/7/stat", stat);
        tree
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The files of version 1 in the group `path` of the three hierarchies.
    fn v1(&self, cpu: &str, path: &str) {
        let top = "sys/fs/cgroup";
        self.file(
            &format!("{top}/memory{path}/memory.usage_in_bytes"),
            "11337728\n",
        );
        self.file(
            &format!("{top}/memory{path}/memory.max_usage_in_bytes"),
            "12000000\n",
        );
        self.file(&format!("{top}/memory{path}/memory.stat"), V1_MEMORY_STAT);
        self.file(&format!("{top}/{cpu}{path}/cpuacct.usage"), "1234567890\n");
        self.file(&format!("{top}/pids{path}/pids.current"), "3\n");
    }

    fn v2(&self, path: &str) {
        let top = "sys/fs/cgroup";
        self.file(&format!("{top}{path}/memory.current"), "11337728\n");
        self.file(&format!("{top}{path}/memory.peak"), "12000000\n");
        self.file(&format!("{top}{path}/memory.stat"), V2_MEMORY_STAT);
        self.file(&format!("{top}{path}/cpu.stat"), V2_CPU_STAT);
        self.file(&format!("{top}{path}/pids.current"), "3\n");
    }

    fn read_as(&self, id: &str) -> CgroupReading {
        let process = MainProcess {
            container: ContainerId(id.into()),
            pid: 7,
        };
        let hierarchies = Hierarchies::read(self.0.path()).unwrap();
        CgroupReader::new(self.0.path(), &hierarchies).read(&process)
    }

    fn read(&self) -> CgroupReading {
        self.read_as(ID)
    }
}

fn all() -> WorkloadUsage {
    WorkloadUsage {
        memory_bytes: Some(11_337_728),
        inactive_file_bytes: Some(7_000_000),
        memory_peak_bytes: Some(12_000_000),
        cpu_usec: Some(1_234_567),
        pids: Some(3),
        ..WorkloadUsage::default()
    }
}

/// The container was started then and uses this.
fn started(usage: WorkloadUsage) -> CgroupReading {
    CgroupReading::Usage(ContainerUsage {
        usage,
        start_ticks: Some(4711),
    })
}

fn groups_v1(cpu: &str, path: &str) -> String {
    format!("9:name=systemd:{path}\n8:pids:{path}\n4:memory:{path}\n2:{cpu}:{path}\n0::/\n")
}

#[test]
fn cgroups_of_version_1_and_hybrid_systems_are_read() {
    for own in [
        format!("/libpod_parent/libpod-{ID}"),
        format!("/ecu/apps/libpod-{ID}"),
        format!("/libpod_parent/{POD}/libpod-{ID}"),
        format!("/machine.slice/libpod-{ID}.scope"),
        format!("/machine.slice/machine-libpod_pod_{POD}.slice/libpod-{ID}.scope"),
        format!("/default/{ID}"),
        format!("/system.slice/nerdctl-{ID}.scope"),
    ] {
        for (mounts, cpu, cpu_folder) in [
            (HYBRID, "cpuacct", "cpuacct"),
            (V1, "cpu,cpuacct", "cpu,cpuacct"),
        ] {
            for below in ["", "/container", "/container/init.scope"] {
                let tree = Tree::new(mounts, &groups_v1(cpu, &format!("{own}{below}")));
                tree.v1(cpu_folder, &own);
                assert_eq!(tree.read(), started(all()), "{own}{below} {cpu}");
            }
        }
    }
}

#[test]
fn cgroups_of_version_2_are_read_without_one_of_version_1() {
    for own in [
        format!("/machine.slice/libpod-{ID}.scope"),
        format!("/libpod_parent/libpod-{ID}"),
        format!("/default/{ID}"),
    ] {
        for below in ["", "/container"] {
            let tree = Tree::new(V2, &format!("0::{own}{below}\n"));
            tree.v2(&own);
            assert_eq!(tree.read(), started(all()), "{own}{below}");
        }
    }
}

// [utest->swdd~usage-on-request~1]
#[test]
fn what_the_kernel_does_not_have_is_unknown_and_never_zero() {
    let own = format!("/machine.slice/libpod-{ID}.scope");
    let tree = Tree::new(V2, &format!("0::{own}\n"));
    tree.v2(&own);
    let folder = tree.0.path().join(format!("sys/fs/cgroup{own}"));
    fs::remove_file(folder.join("memory.peak")).unwrap(); // Before Linux 5.19.
    fs::write(folder.join("pids.current"), "max\n").unwrap();
    fs::write(folder.join("memory.stat"), "anon 1\n").unwrap();
    let expected = WorkloadUsage {
        memory_peak_bytes: None,
        pids: None,
        inactive_file_bytes: None,
        ..all()
    };
    assert_eq!(tree.read(), started(expected));
    fs::remove_dir_all(&folder).unwrap(); // The container has just ended.
    assert_eq!(tree.read(), started(WorkloadUsage::default()));
    fs::remove_file(tree.0.path().join("proc/7/cgroup")).unwrap();
    assert_eq!(tree.read(), CgroupReading::Ended);
}

#[test]
fn numbers_of_another_group_are_never_taken() {
    let own = format!("/libpod_parent/libpod-{ID}");
    // `--cgroups=disabled`: the group of the program that called the engine.
    let disabled = Tree::new(
        HYBRID,
        &groups_v1("cpuacct", "/system.slice/ank-agent.service"),
    );
    disabled.v1("cpuacct", "/system.slice/ank-agent.service");
    assert_eq!(disabled.read(), CgroupReading::NoCgroup);
    // In a namespace of its own the group is called `/`.
    let namespace = Tree::new(V2, "0::/\n");
    namespace.v2("");
    assert_eq!(namespace.read(), CgroupReading::NoCgroup);
    // A controller whose group is not the container's is unknown; version 2 does not have it
    // either.
    let mixed = Tree::new(
        HYBRID,
        &format!("8:pids:/\n4:memory:{own}\n2:cpuacct:/\n0::{own}\n"),
    );
    mixed.v1("cpuacct", &own);
    mixed.v1("cpuacct", "");
    mixed.v2(&format!("/unified{own}"));
    assert_eq!(
        mixed.read(),
        started(WorkloadUsage {
            cpu_usec: None,
            pids: None,
            ..all()
        })
    );
    // Above the root of our namespace, where the same path leads elsewhere.
    let above = Tree::new(V2, &format!("0::/../../libpod-{ID}\n"));
    above.v2(&format!("/libpod-{ID}"));
    assert_eq!(above.read(), started(WorkloadUsage::default()));
    // The pid belongs to another container by now, and an id that is none may be a part of
    // anything.
    let other = Tree::new(V2, &format!("0::/libpod_parent/libpod-{POD}\n"));
    other.v2(&format!("/libpod_parent/libpod-{POD}"));
    assert_eq!(other.read(), CgroupReading::NoCgroup);
    for short in ["", "libpod", &POD[..63]] {
        assert_eq!(other.read_as(short), CgroupReading::NoCgroup, "{short:?}");
    }
}

#[test]
fn only_the_mounted_part_of_a_hierarchy_is_read() {
    let own = format!("/docker/outer/libpod_parent/libpod-{ID}");
    let mount =
        |root: &str| format!("24 22 0:22 {root} /sys/fs/my\\040group rw - cgroup2 cgroup2 rw\n");
    let tree = Tree::new(&mount("/docker/outer"), &format!("0::{own}\n"));
    let top = format!("sys/fs/my group/libpod_parent/libpod-{ID}");
    tree.file(&format!("{top}/pids.current"), "3\n");
    let expected = WorkloadUsage {
        pids: Some(3),
        ..WorkloadUsage::default()
    };
    assert_eq!(tree.read(), started(expected.clone()));
    tree.file("proc/self/mountinfo", &mount("/docker/other"));
    assert_eq!(
        tree.read(),
        started(WorkloadUsage {
            pids: None,
            ..expected
        })
    );
}

#[test]
fn strange_files_end_in_unknown_values() {
    let own = format!("/libpod-{ID}");
    for mounts in [
        "",
        "nonsense\n",
        "1 2 3 - cgroup2\n",
        "31 23 0:28 / - cgroup2 cgroup2 rw\n",
    ] {
        let tree = Tree::new(mounts, &format!("0::{own}\n"));
        tree.v2(&own);
        assert_eq!(tree.read(), started(WorkloadUsage::default()));
    }
    for groups in ["", "\n", "0:\n", ":::\n", "0::\n"] {
        assert_eq!(
            Tree::new(V2, groups).read(),
            CgroupReading::NoCgroup,
            "{groups:?}"
        );
    }
    for stat in ["", "7 (sh", "7 (sh) S 1", ")"] {
        assert_eq!(start_ticks(stat), None, "{stat:?}");
    }
    assert_eq!(unescaped(r"/a\040b\134c\0"), PathBuf::from(r"/a b\c\0"));
}
