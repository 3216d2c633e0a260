"""A pending job, and every reason that Slurm 22.05 to 26.05 gives for one, by what it is expected to mean."""

from __future__ import annotations

import dataclasses
from typing import Any

from slurm_plugin.pilots.pending_reasons import Standing
from slurm_plugin.read.types import Job

NOW_S = 1_000_000.0
QUEUED = Job(
    id="7",
    user="alice",
    partition=("batch",),
    state="PENDING",
    name="regular",
    nodes=(),
    sched_nodes=(),
    start_s=None,
    submit_s=NOW_S - 1,
    time_limit_s=3600.0,
    reason="Resources",
    node_count=4,
    comment="",
    dependency="",
    priority=1,
    reservation="",
)


def queued(**changes: Any) -> Job:
    return dataclasses.replace(QUEUED, **changes)


def _words(text: str) -> list[str]:
    return text.split()


LIMITS = _words(
    """
    AssocGrpBB AssocGrpBBMinutes AssocGrpBBRunMinutes AssocGrpBilling AssocGrpBillingMinutes
    AssocGrpBillingRunMinutes AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit AssocGrpCpuLimit AssocGrpEnergy
    AssocGrpEnergyMinutes AssocGrpEnergyRunMinutes AssocGrpGRES AssocGrpGRESMinutes AssocGrpGRESRunMinutes
    AssocGrpJobsLimit AssocGrpLicense AssocGrpLicenseMinutes AssocGrpLicenseRunMinutes AssocGrpMemLimit
    AssocGrpMemMinutes AssocGrpMemRunMinutes AssocGrpNodeLimit AssocGrpNodeMinutes AssocGrpNodeRunMinutes
    AssocGrpSubmitJobsLimit AssocGrpUnknown AssocGrpUnknownMinutes AssocGrpUnknownRunMinutes AssocGrpWallLimit
    AssocMaxBBMinutesPerJob AssocMaxBBPerJob AssocMaxBBPerNode AssocMaxBillingMinutesPerJob AssocMaxBillingPerJob
    AssocMaxBillingPerNode AssocMaxCpuMinutesPerJobLimit AssocMaxCpuPerJobLimit AssocMaxCpuPerNode
    AssocMaxEnergyMinutesPerJob AssocMaxEnergyPerJob AssocMaxEnergyPerNode AssocMaxGRESMinutesPerJob
    AssocMaxGRESPerJob AssocMaxGRESPerNode AssocMaxJobsLimit AssocMaxLicenseMinutesPerJob AssocMaxLicensePerJob
    AssocMaxMemMinutesPerJob AssocMaxMemPerJob AssocMaxMemPerNode AssocMaxNodeMinutesPerJob
    AssocMaxNodePerJobLimit AssocMaxSubmitJobLimit AssocMaxUnknownMinutesPerJob AssocMaxUnknownPerJob
    AssocMaxUnknownPerNode AssocMaxWallDurationPerJobLimit AssociationJobLimit AssociationResourceLimit
    AssociationTimeLimit MaxBBPerAccount MaxBBRunMinsPerAccount MaxBillingPerAccount MaxBillingRunMinsPerAccount
    MaxCpuPerAccount MaxCpuRunMinsPerAccount MaxEnergyPerAccount MaxEnergyRunMinsPerAccount MaxGRESPerAccount
    MaxGRESRunMinsPerAccount MaxJobsPerAccount MaxLicensePerAccount MaxLicenseRunMinsPerAccount
    MaxMemoryPerAccount MaxMemoryRunMinsPerAccount MaxNodePerAccount MaxNodeRunMinsPerAccount
    MaxSubmitJobsPerAccount MaxUnknownPerAccount MaxUnknownRunMinsPerAccount QOSGrpBB QOSGrpBBMinutes
    QOSGrpBBRunMinutes QOSGrpBilling QOSGrpBillingMinutes QOSGrpBillingRunMinutes QOSGrpCPUMinutesLimit
    QOSGrpCPURunMinutesLimit QOSGrpCpuLimit QOSGrpEnergy QOSGrpEnergyMinutes QOSGrpEnergyRunMinutes QOSGrpGRES
    QOSGrpGRESMinutes QOSGrpGRESRunMinutes QOSGrpJobsLimit QOSGrpLicense QOSGrpLicenseMinutes
    QOSGrpLicenseRunMinutes QOSGrpMemLimit QOSGrpMemoryMinutes QOSGrpMemoryRunMinutes QOSGrpNodeLimit
    QOSGrpNodeMinutes QOSGrpNodeRunMinutes QOSGrpSubmitJobsLimit QOSGrpUnknown QOSGrpUnknownMinutes
    QOSGrpUnknownRunMinutes QOSGrpWallLimit QOSJobLimit QOSMaxBBPerJob QOSMaxBBPerNode QOSMaxBBPerUser
    QOSMaxBillingMinutesPerJob QOSMaxBillingPerJob QOSMaxBillingPerNode QOSMaxBillingPerUser
    QOSMaxCpuMinutesPerJobLimit QOSMaxCpuPerJobLimit QOSMaxCpuPerNode QOSMaxCpuPerUserLimit
    QOSMaxEnergyMinutesPerJob QOSMaxEnergyPerJob QOSMaxEnergyPerNode QOSMaxEnergyPerUser QOSMaxGRESMinutesPerJob
    QOSMaxGRESPerJob QOSMaxGRESPerNode QOSMaxGRESPerUser QOSMaxJobsPerUserLimit QOSMaxLicenseMinutesPerJob
    QOSMaxLicensePerJob QOSMaxLicensePerUser QOSMaxMemoryMinutesPerJob QOSMaxMemoryPerJob QOSMaxMemoryPerNode
    QOSMaxMemoryPerUser QOSMaxNodeMinutesPerJob QOSMaxNodePerJobLimit QOSMaxNodePerUserLimit
    QOSMaxSubmitJobPerUserLimit QOSMaxUnknownMinutesPerJob QOSMaxUnknownPerJob QOSMaxUnknownPerNode
    QOSMaxUnknownPerUser QOSMaxWallDurationPerJobLimit QOSMinBB QOSMinBilling QOSMinCpuNotSatisfied QOSMinEnergy
    QOSMinGRES QOSMinLicense QOSMinMemory QOSMinNode QOSMinUnknown QOSResourceLimit QOSTimeLimit QOSUsageThreshold
    """
)
RUN_MINUTES_PER_USER = _words(
    """
    MaxBBRunMinsPerUser MaxBillingRunMinsPerUser MaxCpuRunMinsPerUser MaxEnergyRunMinsPerUser MaxGRESRunMinsPerUser
    MaxLicenseRunMinsPerUser MaxMemoryRunMinsPerUser MaxNodeRunMinsPerUser MaxUnknownRunMinsPerUser
    """
)
LAST_RUN = _words(
    """
    NodeDown SystemFailure JobLaunchFailure NonZeroExitCode RaisedSignal TimeLimit InactiveLimit OutOfMemory
    """
)

EXPECTED: dict[Standing, list[str]] = {
    Standing.WAITS: [
        "",
        *_words("None Resources Priority ReqNodeNotAvail SchedDefer FedJobLock MpiPortsBusy Cleaning Prolog"),
        *_words("FrontEndDown BlockMaxError BlockFreeAction PowerNotAvail PowerReserved MaxPoweredUpNodes"),
        *_words("Constraints MaxMemPerLimit AccountingPolicy"),
        "ReqNodeNotAvail, UnavailableNodes:n[3,7]",
        "ReqNodeNotAvail, May be reserved for other job",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        *LAST_RUN,
    ],
    Standing.BARRED: [
        *_words("BeginTime Licenses Reservation JobArrayTaskLimit BurstBufferResources BurstBufferStageIn"),
        *_words("InvalidAccount InvalidQOS DeadLine NvidiaImexChannels"),
        *LIMITS,
        *RUN_MINUTES_PER_USER,
    ],
    Standing.ONE_PARTITION: [
        *_words("PartitionNodeLimit PartitionTimeLimit PartitionDown PartitionInactive PartitionConfig"),
        *_words("AccountNotAllowed QOSNotAllowed BadConstraints"),
    ],
    Standing.HELD: [
        *_words("JobHeldAdmin JobHeldUser JobHoldMaxRequeue BurstBufferOperation"),
        *_words("ReservationDeleted ReservationInvalid Dependency DependencyNeverSatisfied"),
        "launch failed requeued held",
        "user env retrieval failed requeued held",
        "job requeued in held state",
    ],
}
KNOWN = [reason for reasons in EXPECTED.values() for reason in reasons]
