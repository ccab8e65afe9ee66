//! Each reason to prepare less, and none.

use super::*;
use crate::agent::settings::RUNTIMES;

fn instance(config: &str) -> InstanceName {
    InstanceName::with_id("w", config, "A")
}

/// A new instance that waits for others only.
fn waiting(new: &InstanceName) -> Situation<'_> {
    Situation { instance: new, old: None, old_searches: false, may_run: true }
}

fn most_of(runtime: &str, options: &str, image: &str, situation: Situation<'_>) -> PrepareLevel {
    let config = match runtime {
        "podman-kube" => "manifest: 'kind: Pod'".to_owned(),
        _ => format!("image: {image}\ncommandOptions: [{options}]"),
    };
    most(&Workload::new("A", runtime, &config), situation)
}

fn with(options: &str) -> PrepareLevel {
    most_of("podman", options, "x", waiting(&instance("new")))
}

// [utest->swdd~agent-prepares-starts~1]
#[test]
fn options_decide_how_far_a_start_may_be_prepared() {
    use PrepareLevel::{Create, Image, Init, None};
    for (options, level) in [
        ("", Init),
        ("--pull=missing, --rm, -it, -e, A=p, -v, '/a:/b', --network=host, --restart=no", Init),
        ("--pull, never", Init),
        ("--name, x, --cidfile=/c", Init),
        ("-ePATH=P, -v/p:/d", Init),
        ("--pull=always", None),
        ("--pull, newer", None),
        ("--pull=missing, --pull=always", None),
        ("--replace", Image),
        ("--restart=always", Image),
        ("--restart, on-failure", Image),
        ("--pod=p", Image),
        ("--pod, p", Image),
        ("--requires=a", Image),
        ("--volumes-from, a", Image),
        ("--network=container:a", Image),
        ("--pid, 'container:a'", Image),
        ("-d", Image),
        ("-itd", Image),
        ("--detach=true", Image),
        ("--rmi", Image),
        ("--rootfs", Init),
        ("--rootfs, --replace", None),
        ("-p, '80:80'", Create),
        ("-p80:80", Create),
        ("-itP", Create),
        ("--publish=80:80", Create),
        ("--publish-all", Create),
        ("--ip=10.0.0.1", Create),
        ("--ip6, '::1'", Create),
        ("--mac-address=0", Create),
        ("-p, '80:80', --pod=p", Image),
    ] {
        assert_eq!(with(options), level, "{options}");
    }
}

#[test]
fn what_is_there_and_what_does_not_hold_decide_as_well() {
    let (old, new) = (instance("old"), instance("new"));
    let beside = |old| Situation { old: Some(old), ..waiting(&new) };
    let most = |options: &str, situation| most_of("podman", options, "x", situation);
    assert_eq!(most("", Situation { may_run: false, ..waiting(&new) }), PrepareLevel::Image);
    assert_eq!(most("", beside(&old)), PrepareLevel::Create);
    assert_eq!(most("", beside(&new)), PrepareLevel::Image);
    for options in ["--name=x", "--cidfile, /c"] {
        assert_eq!(most(options, beside(&old)), PrepareLevel::Image);
    }
    assert_eq!(most("", Situation { old_searches: true, ..beside(&old) }), PrepareLevel::Image);
}

#[test]
fn engines_and_images_differ_in_what_they_can() {
    let new = instance("new");
    let levels = RUNTIMES.map(|runtime| (runtime, most_of(runtime, "", "x", waiting(&new))));
    assert_eq!(
        levels,
        [("podman", PrepareLevel::Init), ("containerd", PrepareLevel::Create), ("podman-kube", PrepareLevel::Image),]
    );
    for image in ["'oci-archive:/a.tar'", "'docker-archive:/a.tar'", "'dir:/a'"] {
        assert_eq!(most_of("podman", "", image, waiting(&new)), PrepareLevel::Init, "{image}");
        assert_eq!(most_of("podman", "--pod=p", image, waiting(&new)), PrepareLevel::None, "{image}");
    }
}
