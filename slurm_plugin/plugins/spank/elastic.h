/* The value of --elastic: MIN-MAX[,backend=B][,sizes=1:2:4][,weight=W][,up=S][,down=S][,workers=N][,gpu=TYPE:N]
 * [,without=TYPE:TYPE][,curve=estimate:BATCH][,frozen=S][,resume=JOBID][,mix][,state=PATH][,container=IMAGE]
 * [,share=CPUS:MEMORY], and at the end [,progress=REGEX]. */
#ifndef BFTD_ELASTIC_H
#define BFTD_ELASTIC_H

#include <stddef.h>

/*
 * Check a value as a user wrote it. Returns 0 when it is valid; otherwise -1, with one line in `why` (at most `size`
 * bytes, the final NUL among them) that says what to write instead.
 *
 * What is accepted here, elastic/options/elastic_option.py accepts too, but for a progress= that is no regular
 * expression of Python's.
 */
int elastic_check(const char *text, char *why, size_t size);

#endif
