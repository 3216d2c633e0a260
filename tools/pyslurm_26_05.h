/*
 * For compiling pyslurm 25.11 against Slurm 26.05: calls on single jobs, whose arguments have changed between the two,
 * fail here. The tests need none of them: they read all nodes, jobs and reservations.
 */
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/slurmdb.h>

#define slurm_free_ctl_conf(...) ((void) 0)
#define slurm_get_end_time(...) SLURM_ERROR
#define slurm_get_rem_time(...) SLURM_ERROR
#define slurm_job_node_ready(...) SLURM_ERROR
#define slurm_kill_job(...) SLURM_ERROR
#define slurm_load_job(...) SLURM_ERROR
#define slurm_notify_job(...) SLURM_ERROR
#define slurm_pid2jobid(...) SLURM_ERROR
#define slurm_requeue(...) SLURM_ERROR
#define slurm_resume(...) SLURM_ERROR
#define slurm_suspend(...) SLURM_ERROR
#define ESLURM_ERROR_ON_DESC_TO_RECORD_COPY 0
