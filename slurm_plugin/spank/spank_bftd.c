/*
 * Adds --elastic to sbatch, salloc and srun.
 *
 * It checks what the user wrote and nothing else: the value travels with the job, and bftd.lua in slurmctld acts on it.
 */
#define _GNU_SOURCE /* program_invocation_short_name */
#include "elastic.h"

#include <errno.h>
#include <slurm/spank.h>
#include <stdlib.h>
#include <string.h>

/* The first argument is part of the name under which bftd.lua finds the value. */
SPANK_PLUGIN(bftd, 1)

#define COMPLAINT_SIZE 512

/* How Slurm hands the option on to the job's processes. */
#define INHERITED "SLURM_SPANK__SLURM_SPANK_OPTION_bftd_elastic"

static int on_elastic(int val, const char *value, int remote);

static struct spank_option elastic_option = {
	.name = "elastic",
	.arginfo = "MIN-MAX[,backend=horovod|torchrun][,sizes=1:2:4:8]",
	.usage = "train on MIN to MAX idle nodes, as they come and go (batch jobs whose script is in Python)",
	.has_arg = 1,
	.val = 0,
	.cb = on_elastic,
};

static int only_batch(const char *command)
{
	slurm_error("--elastic is for batch jobs only, not for %s: submit the training script with "
		    "sbatch --elastic=MIN-MAX SCRIPT",
		    command);
	return -1;
}

static int on_elastic(int val, const char *value, int remote)
{
	char why[COMPLAINT_SIZE];

	(void)val;
	if (remote) /* on the job's node, where the value has been checked */
		return 0;
	if (spank_context() == S_CTX_LOCAL)
		return only_batch("srun");
	if (strcmp(program_invocation_short_name, "salloc") == 0)
		return only_batch("salloc");
	if (elastic_check(value, why, sizeof(why)) == 0)
		return 0;
	slurm_error("%s", why);
	return -1;
}

int slurm_spank_init(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	/* Within an elastic job, an sbatch or srun of the user's would take the job's own option for one of theirs. */
	unsetenv(INHERITED);
	/* sbatch and salloc know only options that are registered here, not those of a static table. */
	return spank_option_register(spank, &elastic_option) == ESPANK_SUCCESS ? 0 : -1;
}
