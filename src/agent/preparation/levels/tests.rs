//! Each reason to prepare less, and none.

use super::*;
use crate::agent::settings::RUNTIMES;

fn instance(config: &str) -> InstanceName {
    InstanceName::with_id("w", config, "A")
}

fn most_of(runtime: &str, options: &str, image: &str, change: impl FnOnce(&mut Situation<'_>)) -> PrepareLevel {
    let config = match runtime {
        "podman-kube" => "manifest: 'kind: Pod'".to_owned(),
        _ => format!("image: {image}\ncommandOptions: [{options}]"),
    };
    let new = instance("new");
    let mut situation = Situation { instance: &new, old: None, old_searches: false, may_run: true };
    change(&mut situation);
    most(&Workload::new("A", runtime, &config), situation)
}

fn with(options: &str) -> PrepareLevel {
    most_of("podman", options, "x", |_| {})
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
    let most = |options: &str, change: fn(&mut Situation<'_>)| most_of("podman", options, "x", change);
    assert_eq!(most("", |situation| situation.may_run = false), PrepareLevel::Image);
    assert_eq!(most_of("podman", "", "x", |situation| situation.old = Some(&old)), PrepareLevel::Create);
    assert_eq!(most_of("podman", "", "x", |situation| situation.old = Some(&new)), PrepareLevel::Image);
    for options in ["--name=x", "--cidfile, /c"] {
        assert_eq!(most_of("podman", options, "x", |situation| situation.old = Some(&old)), PrepareLevel::Image);
    }
    let searching = most_of("podman", "", "x", |situation| {
        (situation.old, situation.old_searches) = (Some(&old), true);
    });
    assert_eq!(searching, PrepareLevel::Image);
}

#[test]
fn engines_and_images_differ_in_what_they_can() {
    let levels = RUNTIMES.map(|runtime| (runtime, most_of(runtime, "", "x", |_| {})));
    assert_eq!(
        levels,
        [
            ("podman", PrepareLevel::Init),
            ("containerd", PrepareLevel::Create),
            ("podman-kube", PrepareLevel::Image),
        ]
    );
    for image in ["'oci-archive:/a.tar'", "'docker-archive:/a.tar'", "'dir:/a'"] {
        assert_eq!(most_of("podman", "", image, |_| {}), PrepareLevel::Init, "{image}");
        assert_eq!(most_of("podman", "--pod=p", image, |_| {}), PrepareLevel::None, "{image}");
    }
}
