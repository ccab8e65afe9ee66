//! Each reason to prepare less, and none.

use super::*;
use ankaios_model::names::RUNTIMES;

fn most_of(runtime: &str, options: &str, image: &str, old: PresentContainers) -> PrepareLevel {
    let config = match runtime {
        "podman-kube" => "manifest: 'kind: Pod'".to_owned(),
        _ => format!("image: {image}\ncommandOptions: [{options}]"),
    };
    allowed(
        &Workload::new("A", runtime, &config),
        PrepareLevel::Init,
        old,
    )
}

fn with(options: &str) -> PrepareLevel {
    most_of("podman", options, "x", PresentContainers::Nothing)
}

// [utest->swdd~agent-prepares-starts~1]
#[test]
fn options_decide_how_far_a_start_may_be_prepared() {
    use PrepareLevel::{Create, Image, Init, None};
    for (options, level) in [
        ("", Init),
        (
            "--pull=missing, --rm, -it, -e, A=p, -v, '/a:/b', --network=host, --restart=no",
            Init,
        ),
        ("--pull, never", Init),
        ("--name, x", Init),
        ("-ePATH=P, -v/p:/d", Init),
        (
            "--network, 'bridge:alias=a,interface_name=ip', --userns=keep-id",
            Init,
        ),
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
        ("--cidfile=/c", Image),
        ("--cidfile, /c", Image),
        ("--secret, s", Image),
        ("--secret=s,type=mount", Image),
        ("--userns=auto", Image),
        ("--userns, 'auto:size=4096'", Image),
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
        ("--network=bridge:ip=10.0.0.1", Create),
        ("--net, 'a:alias=b,mac=0'", Create),
        ("-p, '80:80', --pod=p", Image),
    ] {
        assert_eq!(with(options), level, "{options}");
    }
}

#[test]
fn what_is_there_and_what_does_not_hold_decide_as_well() {
    let most = |options: &str, old| most_of("podman", options, "x", old);
    assert_eq!(
        most("", PresentContainers::OtherInstance),
        PrepareLevel::Create
    );
    assert_eq!(
        most("", PresentContainers::SameInstance),
        PrepareLevel::Image
    );
    assert_eq!(
        most("--name=x", PresentContainers::OtherInstance),
        PrepareLevel::Image
    );
}

#[test]
fn engines_and_images_differ_in_what_they_can() {
    let levels = RUNTIMES.map(|runtime| {
        (
            runtime,
            most_of(runtime, "", "x", PresentContainers::Nothing),
        )
    });
    assert_eq!(
        levels,
        [
            ("podman", PrepareLevel::Init),
            ("containerd", PrepareLevel::Create),
            ("podman-kube", PrepareLevel::Image),
        ]
    );
    for image in [
        "'oci-archive:/a.tar'",
        "'docker-archive:/a.tar'",
        "'dir:/a'",
    ] {
        assert_eq!(
            most_of("podman", "", image, PresentContainers::Nothing),
            PrepareLevel::Init,
            "{image}"
        );
        assert_eq!(
            most_of("podman", "--pod=p", image, PresentContainers::Nothing),
            PrepareLevel::None,
            "{image}"
        );
    }
    for (config, level) in [
        ("image: x", PrepareLevel::Image),
        ("image: 'oci-archive:/a.tar'", PrepareLevel::None),
        (
            "{image: /a, commandOptions: [--rootfs]}",
            PrepareLevel::None,
        ),
    ] {
        let workload = Workload::new("A", "podman", config);
        assert_eq!(
            allowed(&workload, PrepareLevel::Image, PresentContainers::Nothing),
            level,
            "{config}"
        );
        assert_eq!(
            allowed(&workload, PrepareLevel::Create, PresentContainers::Nothing),
            PrepareLevel::Create,
            "{config}"
        );
    }
}
