//! Manifests of Kubernetes: the parts that are read, and the ones that are added.

use super::*;

const MANIFEST: &str = "kind: ConfigMap\nmetadata: {name: settings}\n---\nkind: Pod\nmetadata: {name: web}\n\
    spec:\n  containers:\n  - name: first\n  - name: second\n    volumeMounts: [{name: x, mountPath: /x}]\n---\n\
    kind: Deployment\nmetadata: {name: db}\nspec:\n  template:\n    spec:\n      containers: [{name: main}]\n\
    \x20     volumes: [{name: y}]\n";

fn inject(manifest: &str, target: &str) -> Result<String, String> {
    with_control_interface(
        manifest,
        Some(target),
        Path::new("/run/a/control_interface"),
    )
}

fn documents(text: &str) -> Vec<Value> {
    parse(text).unwrap()
}

fn yaml(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap()
}

#[test]
fn images_are_those_that_a_play_pulls_if_missing() {
    let manifest = "kind: Pod\nmetadata: {name: a}\nspec:\n  initContainers: [{name: i, image: first}]\n\
        \x20 containers: [{name: c, image: second, imagePullPolicy: IfNotPresent}, {name: d, image: second}]\n---\n\
        kind: Deployment\nmetadata: {name: b}\nspec: {template: {spec: {containers: [\
        {name: e, image: third}, {name: f, image: fourth, imagePullPolicy: Always}, {name: h, image: -v},\
        {name: g, image: fifth, imagePullPolicy: Never}]}}}\n---\nkind: ConfigMap\nmetadata: {name: x}\n";
    assert_eq!(
        pulled_images(manifest).into_iter().collect::<Vec<_>>(),
        ["first", "second", "third"]
    );
    assert_eq!(
        (pulled_images("kind: Pod").len(), pulled_images("{").len()),
        (0, 0)
    );
}

#[test]
fn control_interface_is_mounted_into_the_named_container() {
    let mount = "{name: control-interface-volume, mountPath: /run/ankaios/control_interface}";
    let volume = "{name: control-interface-volume, hostPath: {path: /run/a/control_interface, type: Directory}}";

    let result = documents(&inject(MANIFEST, "web/second").unwrap());
    let mut expected = documents(MANIFEST);
    expected[1] = yaml(&format!(
        "{{kind: Pod, metadata: {{name: web}}, spec: {{containers: [{{name: first}}, \
         {{name: second, volumeMounts: [{{name: x, mountPath: /x}}, {mount}]}}], volumes: [{volume}]}}}}"
    ));
    assert_eq!(result, expected);

    let result = documents(&inject(MANIFEST, "db-pod/main").unwrap());
    let mut expected = documents(MANIFEST);
    expected[2] = yaml(&format!(
        "{{kind: Deployment, metadata: {{name: db}}, spec: {{template: {{spec: {{containers: \
         [{{name: main, volumeMounts: [{mount}]}}], volumes: [{{name: y}}, {volume}]}}}}}}}}"
    ));
    assert_eq!(result, expected);
}

#[test]
fn what_cannot_be_injected_says_why() {
    let pod = |rest: &str| format!("kind: Pod\nmetadata: {{name: p}}\n{rest}");
    for (manifest, target, expected) in [
        (
            MANIFEST,
            "db/main",
            "Cannot add Control Interface. Target pod not found 'db'",
        ),
        (
            MANIFEST,
            "web/third",
            "Cannot add Control Interface. Target container 'third' not found.",
        ),
        (
            "metadata: {name: p}",
            "p/c",
            "Manifest missing 'kind' field",
        ),
        ("kind: 5", "p/c", "Manifest missing 'kind' field"),
        ("kind: Pod", "p/c", "Manifest missing metadata.name"),
        (&pod("spec: {}"), "p/c", "Manifest missing spec.containers"),
        (
            &pod("spec: {containers: text}"),
            "p/c",
            "Manifest missing spec.containers",
        ),
        (&pod(""), "p/c", "Manifest missing spec.containers"),
        (
            &pod("spec: {containers: [{image: x}]}"),
            "p/c",
            "Container missing name field",
        ),
        (
            &pod("spec: {containers: [{name: c}], volumes: {}}"),
            "p/c",
            "Manifest missing spec.volumes",
        ),
        (
            &pod("spec: {containers: [{name: c, volumeMounts: 1}]}"),
            "p/c",
            "The volumeMounts of container 'c' are not a list",
        ),
    ] {
        assert_eq!(
            inject(manifest, target),
            Err(expected.to_owned()),
            "{manifest}"
        );
    }
    for target in ["web", "a/b/c"] {
        let format = "Expected format: '<pod_name>/<container_name>'";
        let text = format!("Invalid control interface target format: '{target}'. {format}");
        assert_eq!(inject(MANIFEST, target), Err(text));
    }
    let error = inject("a: [", "p/c").unwrap_err();
    assert!(
        error.starts_with("Failed to parse YAML manifest: "),
        "{error}"
    );
    let none = with_control_interface(MANIFEST, None, Path::new("/x"));
    assert_eq!(
        none,
        Err("Control interface target not specified in runtime config.".to_owned())
    );
}

#[test]
fn documents_behind_the_target_and_empty_ones_do_not_matter() {
    let manifest = "---\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n---\nno: kind\n---\n";
    assert_eq!(documents(&inject(manifest, "p/c").unwrap()).len(), 2);
}

#[test]
fn pods_are_told_by_the_names_that_podman_gives_them() {
    let found = pod_documents(MANIFEST);
    assert_eq!(found.len(), 2);
    for (pod, first, second) in [
        ("web", true, false),
        ("web-pod", false, false),
        ("db-pod", false, true),
        ("db-pod-0", false, true),
        ("db-pod-x", false, false),
        ("db-pods", false, false),
        ("db", false, false),
    ] {
        assert_eq!(
            (found[0].makes(pod), found[1].makes(pod)),
            (first, second),
            "{pod}"
        );
    }
    assert_eq!(documents(&found[1].text), [documents(MANIFEST).remove(2)]);
    assert_eq!(pod_documents("a: ["), []);
}
