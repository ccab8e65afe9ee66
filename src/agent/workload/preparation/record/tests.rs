//! Whether the record of an earlier agent fits the desired instance.

use super::*;
use ankaios_fakes::fake_connector::FakeEngine;
use ankaios_model::workload::{File, FileContent};
use std::sync::Arc;
use std::time::Duration;

fn added(change: impl FnOnce(&mut Workload)) -> AddedWorkload {
    let mut workload = Workload::new("agent_A", "podman", "image: x");
    change(&mut workload);
    AddedWorkload {
        instance: workload.instance_name("w"),
        workload: Arc::new(workload),
    }
}

fn container() -> PreparedContainer {
    let id = ContainerId("1".into());
    let paths = ["/dev/null".to_owned(), "/no/such".to_owned()].into();
    let paths = super::super::host_paths::look(&paths, Duration::from_secs(60)).unwrap();
    PreparedContainer {
        id,
        level: PrepareLevel::Init,
        paths,
    }
}

#[test]
fn a_record_fits_the_same_definition_in_the_same_boot_only() {
    let connector = FakeEngine::new().connector("agent_A");
    let folder = Path::new("/run/a");
    let plain = added(|_| {});
    let arguments = connector
        .create_arguments(&new_container(folder, &plain).unwrap())
        .unwrap();
    let text = PreparedRecord::new(&container(), &plain.workload, &arguments, "boot").text();
    let read = || PreparedRecord::read(&text).unwrap();
    assert_eq!(
        read().container(&plain, folder, &connector, "boot"),
        Some(container())
    );
    assert!(read().may_be_of(&container().id) && !read().may_be_of(&ContainerId("2".into())));
    assert_eq!(read().container(&plain, folder, &connector, "other"), None);
    let file = File {
        mount_point: "/f".to_owned(),
        content: FileContent::Data("x".to_owned()),
    };
    for (what, other) in [
        (
            "restart",
            added(|workload| {
                workload.restart_policy = ankaios_model::workload::RestartPolicy::Always
            }),
        ),
        ("file", added(|workload| workload.files.push(file))),
        (
            "config",
            added(|workload| workload.runtime_config = "image: y".into()),
        ),
    ] {
        assert_eq!(
            read().container(&other, folder, &connector, "boot"),
            None,
            "{what}"
        );
    }
    let unknown = PreparedRecord::new(&container(), &plain.workload, &arguments, "");
    assert_eq!(
        unknown.container(&plain, folder, &connector, ""),
        None,
        "whether the node was booted is not known"
    );
}

#[test]
fn record_of_a_create_under_way_fits_any_container() {
    let connector = FakeEngine::new().connector("agent_A");
    let record = PreparedRecord::read(&PreparedRecord::of_create("boot").text()).unwrap();
    assert!(record.may_be_of(&container().id));
    assert_eq!(
        record.container(&added(|_| {}), Path::new("/run/a"), &connector, "boot"),
        None
    );
    assert_eq!(
        (PreparedRecord::read(""), PreparedRecord::read("{}")),
        (None, None)
    );
}
