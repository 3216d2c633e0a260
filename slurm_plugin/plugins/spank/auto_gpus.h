/* The value of --auto-gpus, STEP.py:FUNCTION,global-batch=N or a model's sizes, and the program that answers it. */
#ifndef BFTD_AUTO_GPUS_H
#define BFTD_AUTO_GPUS_H

#include <stddef.h>

/*
 * Check a value as a user wrote it. Returns 0 when its letters can travel with a job; otherwise -1, with one line in
 * `why` (at most `size` bytes, the final NUL among them). What it means is for `bft size auto` to say.
 */
int auto_gpus_check(const char *text, char *why, size_t size);

/*
 * Run `BFT size auto -- TEXT` as who calls, for at most `limit_s` seconds, and put the line that it prints into
 * `answer`. Returns 0; otherwise -1 with one line in `why`. Nothing that it started is left either way. A SIGINT,
 * SIGTERM or SIGHUP that comes meanwhile ends it first and then has its effect here.
 */
int auto_gpus_ask(const char *bft, int limit_s, const char *text, char *answer, size_t size, char *why, size_t why_size);

#endif
