//! Starts a workload on another node, waits until it has ended, and deletes it.

use std::time::Duration;

use ankaios_sdk::{Ankaios, AnkaiosError, Workload, WorkloadStateEnum};

const JOB: &str = "\
image: docker.io/library/busybox
commandArgs: [\"sleep\", \"1\"]
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnkaiosError> {
    let job = Workload::builder()
        .workload_name("job")
        .agent_name("rear")
        .runtime("podman");
    let job = job.restart_policy("NEVER").runtime_config(JOB).build()?;
    // How long each call may take, also one that waits for a state; 5 s where nothing is said.
    let mut ankaios = Ankaios::builder()
        .control_interface()
        .timeout(Duration::from_secs(60))
        .connect()
        .await?;
    let mut agents: Vec<String> = ankaios.get_agents().await?.into_keys().collect();
    agents.sort();
    println!("agents: {}", agents.join(", "));
    let success = ankaios.apply_workload(job).await?;
    let instance = success
        .added_workloads
        .into_iter()
        .next()
        .expect("one workload was added");
    println!(
        "started: {} on {}",
        instance.workload_name, instance.agent_name
    );
    ankaios
        .wait_for_workload_to_reach_state(instance, WorkloadStateEnum::Succeeded)
        .await?;
    println!("ended: job");
    ankaios.delete_workload("job".to_owned()).await?;
    if let Err(error) = ankaios.delete_workload("client".to_owned()).await {
        println!("as it should be: {error}");
    }
    Ok(())
}
