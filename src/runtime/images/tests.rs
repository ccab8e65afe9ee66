//! Names of images in manifests and stores, and calls of engines for them.

use super::*;
use crate::RuntimeConnector;
use crate::container_engine::ContainerConnector;
use crate::scripted_engine::{ID, OTHER, ScriptedEngine};
use crate::{containerd, podman};

fn workload(runtime: &str, config: &str) -> Workload {
    Workload::new("A", runtime, config)
}

fn names(runtime: &str, config: &str) -> Vec<String> {
    names_of(&workload(runtime, config)).into_iter().collect()
}

fn image(id: &str, names: &[&str], digests: &[&str]) -> LocalImage {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    LocalImage {
        id: id.to_owned(),
        names: texts(names),
        digests: texts(digests),
        ..LocalImage::default()
    }
}

// [utest->swdd~agent-knows-images-before-their-use~1]
#[test]
fn images_of_a_workload_are_those_in_its_own_store() {
    for (config, expected) in [
        ("image: nav:1", &["nav:1"][..]),
        ("image: docker://nav", &["nav"]),
        ("image: docker-archive:/a.tar", &["docker-archive:/a.tar"]),
        ("image: nav\ngeneralOptions: [--root, /x]", &[]),
        ("image: nav\ngeneralOptions: [--url=ssh://x]", &[]),
        ("image: nav\ncommandOptions: [--rootfs]", &[]),
        ("image: /srv/root", &[]),
        ("image: --all", &[]),
        ("image: ''", &[]),
        ("image: [", &[]),
    ] {
        assert_eq!(names("podman", config), expected, "{config}");
    }
    let spec = "{initContainers: [{image: a}], containers: [{image: b:1, imagePullPolicy: Always}, \
                {image: -c}, {name: none}]}";
    let manifest = format!("kind: Pod\nmetadata: {{name: p}}\nspec: {spec}\n---\nkind: ConfigMap");
    let config = serde_json::json!({ "manifest": manifest }).to_string();
    assert_eq!(names("podman-kube", &config), ["a", "b:1"]);
}

#[test]
fn image_is_found_by_each_way_to_write_its_name() {
    let digest = format!("docker.io/example/nav@sha256:{OTHER}");
    let nav = image(ID, &["docker.io/example/nav:1.4"], &[&digest]);
    let latest = image("aa", &["docker.io/library/busybox:latest"], &[]);
    let store = ImageStore {
        images: vec![nav, latest],
        containers: Vec::new(),
    };
    for (used, expected) in [
        ("docker.io/example/nav:1.4", Some(ID)),
        ("example/nav:1.4", Some(ID)),
        ("nav:1.4", Some(ID)),
        ("nav", None),
        ("v:1.4", None),
        ("other.io/example/nav:1.4", None),
        (&digest, Some(ID)),
        (&format!("example/nav:1.4@sha256:{OTHER}"), Some(ID)),
        (&format!("example/xnav@sha256:{OTHER}"), None),
        (ID, Some(ID)),
        ("busybox", Some("aa")),
        ("library/busybox", Some("aa")),
        ("", None),
    ] {
        let found = store.find(used).map(|image| &*image.id);
        assert_eq!(found, expected, "{used}");
    }
}

#[test]
fn short_name_of_two_images_means_none_of_them() {
    let images = vec![
        image("aa", &["localhost/nav:1"], &[]),
        image("bb", &["docker.io/library/nav:1"], &[]),
    ];
    let store = ImageStore {
        images,
        containers: Vec::new(),
    };
    assert_eq!(store.find("nav:1"), None);
    assert_eq!(
        store.find("localhost/nav:1").map(|one| &*one.id),
        Some("aa")
    );
}

fn connector(
    engine: &ScriptedEngine,
    of: &'static crate::container_engine::Engine,
) -> impl RuntimeConnector + use<> {
    let mut connector = ContainerConnector::new(of, "A", engine.children());
    connector.cli = engine.cli(of.read_meaning);
    connector
}

#[test]
fn podman_store_has_each_image_once_with_all_names() {
    let line = format!(
        r#"{{"Id":"{ID}","Names":["a:1","b:1","<none>:<none>"],"Digests":null,"Bytes":7,"ReadOnly":true}}"#
    );
    let dangling =
        format!(r#"{{"Id":"{OTHER}","Names":null,"Digests":null,"Bytes":5,"ReadOnly":false}}"#);
    let used = format!(
        r#"{{"Id":"{ID}","Name":"a:1","Labels":{{"name":"web.1.A","agent":"A"}}}}{{"Id":"","Name":"","Labels":null}}"#
    );
    let engine = ScriptedEngine::answering(&[
        &format!("echo '{line}'; echo '{line}'; echo '{dangling}'"),
        &format!("echo '{used}'"),
    ]);
    let store = connector(&engine, &podman::ENGINE).image_store().unwrap();
    let first = LocalImage {
        bytes: Some(7),
        is_read_only: true,
        ..image(ID, &["a:1", "b:1"], &[])
    };
    let second = LocalImage {
        bytes: Some(5),
        ..image(OTHER, &[], &[])
    };
    assert_eq!(store.images, [first.clone(), second.clone()]);
    assert!(store.is_in_use(&first) && !store.is_in_use(&second));
    let instance = InstanceName::with_id("web", "1", "A");
    assert_eq!(store.of_instance(&instance), Some(&first));
    let calls = engine.calls();
    assert!(
        calls[0].starts_with("images --all --no-trunc --format="),
        "{calls:?}"
    );
    assert!(
        calls[1].starts_with("ps --all --external --no-trunc --format="),
        "{calls:?}"
    );
}

#[test]
fn nerdctl_store_finds_images_of_containers_by_name() {
    let line = |repository: &str, tag: &str| {
        format!(
            r#"{{"ID":"sha256:{ID}","Repository":"{repository}","Tag":"{tag}","Digest":"sha256:{OTHER}","Size":"1.5 MiB"}}"#
        )
    };
    let engine = ScriptedEngine::answering(&[
        &format!(
            "echo '{}'; echo '{}'",
            line("nav", "1"),
            line("reg.io/x/nav", "2")
        ),
        r#"echo '{"Name":"docker.io/library/nav:1"}'"#,
    ]);
    let store = connector(&engine, &containerd::ENGINE)
        .image_store()
        .unwrap();
    let [image] = &store.images[..] else {
        panic!("{store:?}")
    };
    assert_eq!(image.names, ["docker.io/library/nav:1", "reg.io/x/nav:2"]);
    assert_eq!(image.bytes, Some(1_572_864));
    assert!(store.is_in_use(image));
}

#[test]
fn listing_that_cannot_be_read_is_an_error() {
    for answer in ["echo x", "echo '{}'", "exit 1", r#"echo '{"Id":5}'"#] {
        let engine = ScriptedEngine::answering(&[answer]);
        let result = connector(&engine, &podman::ENGINE).image_store();
        assert!(matches!(result, Err(RuntimeError::Failed(_))), "{answer}");
    }
}

// [utest->swdd~agent-removes-replaced-images~1]
#[test]
fn removals_are_by_id_and_never_forced() {
    let name = ImageRemoval::Name {
        id: ID.to_owned(),
        name: "a:1".to_owned(),
    };
    let whole = ImageRemoval::Image {
        id: ID.to_owned(),
        name: Some("a:1".to_owned()),
    };
    let unnamed = ImageRemoval::Image {
        id: ID.to_owned(),
        name: None,
    };
    for (of, removal, expected) in [
        (&podman::ENGINE, &name, format!("untag {ID} a:1")),
        (&podman::ENGINE, &whole, format!("rmi --no-prune {ID}")),
        (&podman::ENGINE, &unnamed, format!("rmi --no-prune {ID}")),
        (&containerd::ENGINE, &name, "rmi a:1".to_owned()),
        (&containerd::ENGINE, &whole, "rmi a:1".to_owned()),
        (&containerd::ENGINE, &unnamed, format!("rmi {ID}")),
    ] {
        let engine = ScriptedEngine::answering(&[
            "",
            "echo 'Error: x: image not known' >&2; exit 1",
            "echo 'Error: in use by a container' >&2; exit 2",
        ]);
        let mut connector = connector(&engine, of);
        assert_eq!(connector.remove_image(removal), Ok(()));
        assert_eq!(connector.remove_image(removal), Ok(()), "it is gone");
        assert!(connector.remove_image(removal).is_err());
        assert_eq!(engine.calls(), vec![expected; 3]);
    }
}

#[test]
fn sizes_for_people_are_read_as_bytes() {
    for (text, bytes) in [
        ("0 B", Some(0)),
        ("1.5 KiB", Some(1536)),
        ("2 MB", Some(2_000_000)),
        ("1 GiB", Some(1_073_741_824)),
        ("-1 B", None),
        ("1", None),
        ("x MiB", None),
        ("1 YiB", None),
    ] {
        assert_eq!(bytes_of(text), bytes, "{text}");
    }
}
