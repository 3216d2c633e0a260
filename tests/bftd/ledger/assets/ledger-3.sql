BEGIN TRANSACTION;
CREATE TABLE events (
    rowid INTEGER PRIMARY KEY AUTOINCREMENT, at_s REAL NOT NULL, kind TEXT NOT NULL, trainer TEXT, node TEXT,
    data TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1000.0,'registered','17',NULL,'{"name": "train-a", "user": "ann"}');
INSERT INTO "events" VALUES(2,1000.0,'registered','18',NULL,'{"name": "train-b", "user": "bob"}');
INSERT INTO "events" VALUES(3,1000.0,'registered','19',NULL,'{"name": "train-c", "user": "bob"}');
INSERT INTO "events" VALUES(4,1000.0,'decision','19',NULL,'{"text": "train-c has finished with exit code 0", "decision": {"kind": "finished", "who": "train-c", "exit_code": 0, "why": ""}}');
INSERT INTO "events" VALUES(5,1000.0,'finished','19',NULL,'{"exit_code": 0, "reason": "", "summary": {"step": 5}}');
INSERT INTO "events" VALUES(6,1001.0,'pool',NULL,NULL,'{"version": 0, "joined": [], "left": []}');
INSERT INTO "events" VALUES(7,1001.0,'decision','17',NULL,'{"text": "train-a waits: no node free, it needs 1", "decision": {"kind": "waits", "who": "train-a", "why": "no node free, it needs 1"}}');
INSERT INTO "events" VALUES(8,1001.0,'decision','18',NULL,'{"text": "train-b waits: no node free, it needs 1", "decision": {"kind": "waits", "who": "train-b", "why": "no node free, it needs 1"}}');
INSERT INTO "events" VALUES(9,1002.0,'pool',NULL,NULL,'{"version": 1, "joined": ["n1", "n2", "n3"], "left": []}');
INSERT INTO "events" VALUES(10,1002.0,'granted','17','n1','{"lease": "n1.1", "reason": "train-a starts on 2 nodes (n[1-2]): about 16.7 samples/s expected", "vacate": false, "job_id": null}');
INSERT INTO "events" VALUES(11,1002.0,'granted','17','n2','{"lease": "n2.2", "reason": "train-a starts on 2 nodes (n[1-2]): about 16.7 samples/s expected", "vacate": false, "job_id": null}');
INSERT INTO "events" VALUES(12,1002.0,'decision','17',NULL,'{"text": "train-a starts on 2 nodes (n[1-2]): about 16.7 samples/s expected", "decision": {"kind": "started", "who": "train-a", "size": 2, "added": ["n1", "n2"], "samples_per_s": 16.666666666666668, "seen": false, "on": ""}}');
INSERT INTO "events" VALUES(13,1002.0,'granted','18','n3','{"lease": "n3.3", "reason": "train-b starts on 1 node (n3): its speed is not known yet", "vacate": false, "job_id": null}');
INSERT INTO "events" VALUES(14,1002.0,'decision','18',NULL,'{"text": "train-b starts on 1 node (n3): its speed is not known yet", "decision": {"kind": "started", "who": "train-b", "size": 1, "added": ["n3"], "samples_per_s": null, "seen": false, "on": ""}}');
INSERT INTO "events" VALUES(15,1002.0,'lease','17','n1','{"lease": "n1.1", "state": "placed", "at_s": 1002.0, "reason": ""}');
INSERT INTO "events" VALUES(16,1002.0,'lease','17','n1','{"lease": "n1.1", "state": "working", "at_s": 1002.0, "reason": ""}');
INSERT INTO "events" VALUES(17,1002.0,'lease','17','n2','{"lease": "n2.2", "state": "placed", "at_s": 1002.0, "reason": ""}');
INSERT INTO "events" VALUES(18,1002.0,'lease','17','n2','{"lease": "n2.2", "state": "working", "at_s": 1002.0, "reason": ""}');
INSERT INTO "events" VALUES(19,1002.0,'lease','18','n3','{"lease": "n3.3", "state": "placed", "at_s": 1002.0, "reason": ""}');
INSERT INTO "events" VALUES(20,1002.0,'lease','18','n3','{"lease": "n3.3", "state": "working", "at_s": 1002.0, "reason": ""}');
INSERT INTO "events" VALUES(21,1002.0,'progress','17',NULL,'{"at_s": 1002.0, "step": 0, "samples": 0.0, "samples_per_s": 16.0, "nodes": 2, "world_size": 0, "loss": null, "steps_lost": 0, "window_s": 0.0, "save_s": null, "state_bytes": null}');
INSERT INTO "events" VALUES(22,1007.0,'decision',NULL,NULL,'{"text": "ann has n3 with job 73, which no lease stands behind", "decision": {"kind": "job_strays", "user": "ann", "nodes": ["n3"], "job_id": "73"}}');
INSERT INTO "events" VALUES(23,1007.0,'stray',NULL,'n3','{"job_id": "73", "user": "ann", "account": "", "nodes": ["n3"], "since_s": null}');
INSERT INTO "events" VALUES(24,1007.0,'progress','17',NULL,'{"at_s": 1007.0, "step": 5, "samples": 50.0, "samples_per_s": 16.0, "nodes": 2, "world_size": 0, "loss": null, "steps_lost": 0, "window_s": 0.0, "save_s": null, "state_bytes": null}');
CREATE TABLE leases (id TEXT PRIMARY KEY, granted_s REAL NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "leases" VALUES('n1.1',1002.0,'{"id": "n1.1", "node": "n1", "trainer": "17", "granted_s": 1002.0, "limit_s": 3600.0, "reason": "train-a starts on 2 nodes (n[1-2]): about 16.7 samples/s expected", "gres": "", "gpus": 0, "phase": "working", "job_id": "71", "placed_s": 1002.0, "revoked_s": null, "vacate": false, "asked_back_s": null, "observed": true, "missed_polls": 0, "missed_s": null, "alarmed": false, "partition": "", "cancelled_s": null, "shown": true, "working_s": 1002.0, "leaving_s": null, "ended_s": null, "leave_by_s": null}');
INSERT INTO "leases" VALUES('n2.2',1002.0,'{"id": "n2.2", "node": "n2", "trainer": "17", "granted_s": 1002.0, "limit_s": 3360.0, "reason": "train-a starts on 2 nodes (n[1-2]): about 16.7 samples/s expected", "gres": "", "gpus": 0, "phase": "working", "job_id": "72", "placed_s": 1002.0, "revoked_s": null, "vacate": false, "asked_back_s": null, "observed": true, "missed_polls": 0, "missed_s": null, "alarmed": false, "partition": "", "cancelled_s": null, "shown": true, "working_s": 1002.0, "leaving_s": null, "ended_s": null, "leave_by_s": null}');
INSERT INTO "leases" VALUES('n3.3',1002.0,'{"id": "n3.3", "node": "n3", "trainer": "18", "granted_s": 1002.0, "limit_s": 3600.0, "reason": "train-b starts on 1 node (n3): its speed is not known yet", "gres": "", "gpus": 0, "phase": "working", "job_id": "73", "placed_s": 1002.0, "revoked_s": null, "vacate": false, "asked_back_s": null, "observed": true, "missed_polls": 0, "missed_s": null, "alarmed": false, "partition": "", "cancelled_s": null, "shown": false, "working_s": 1002.0, "leaving_s": null, "ended_s": null, "leave_by_s": null}');
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('grants','[1002.0, 1002.0, 1002.0]');
INSERT INTO "meta" VALUES('kept.identity','{"words": ["568de46d"]}');
INSERT INTO "meta" VALUES('kept.shadow','{"a": 1}');
INSERT INTO "meta" VALUES('mode','"live"');
INSERT INTO "meta" VALUES('sequence','3');
INSERT INTO "meta" VALUES('tuned','{"pj_max": 7}');
INSERT INTO "meta" VALUES('usage','{"pool_node_seconds": 18.0, "used_node_seconds": 15.0, "training_node_seconds": 15.0}');
CREATE TABLE trainers (id TEXT PRIMARY KEY, arrived_s REAL NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "trainers" VALUES('17',1000.0,'{"request": {"id": "17", "name": "train-a", "backend": "horovod", "sizes": {"low": 1, "high": 2, "only": null}, "user": "ann", "partition": "elastic", "weight": 1.0, "workers_per_node": null, "curve": [[1, 10.0], [4, 30.0]], "up_cost_s": null, "down_cost_s": null, "warm_up_s": null, "held": [], "wish": {"gpu": "", "gpus": 0, "features": [], "mix": false, "without": []}, "estimates": []}, "arrived_s": 1000.0, "knowledge": {"given": [[1, 10.0], [4, 30.0]], "seen": [[2, 16.0]], "given_up_cost_s": null, "given_down_cost_s": null, "given_warm_up_s": null, "up_stalls": [], "down_stalls": [], "warm_ups_s": [0.0, 0.0], "resumes_s": [], "save_s": null, "state_bytes": 0.0, "last_resize": null, "node_class": "", "elsewhere": {}, "estimates": {}}, "epoch": 1, "version": 3, "state": "running", "heard_s": 1007.0, "step": 5, "samples": 50.0, "samples_per_s": 16.0, "loss": null, "resizes": 0, "suspends": 0, "steps_lost": 0, "exit_code": null, "finished_s": null, "refused_rounds": 0, "refused_round_s": -Infinity, "no_growth_until_s": -Infinity, "idled_s": 0.0, "worked_s": 0.0, "resumed_s": -Infinity, "said": "", "strays": [], "account": ""}');
INSERT INTO "trainers" VALUES('18',1000.0,'{"request": {"id": "18", "name": "train-b", "backend": "horovod", "sizes": {"low": 1, "high": 1, "only": null}, "user": "bob", "partition": "elastic", "weight": 1.0, "workers_per_node": null, "curve": [], "up_cost_s": null, "down_cost_s": null, "warm_up_s": null, "held": [], "wish": {"gpu": "", "gpus": 0, "features": [], "mix": false, "without": []}, "estimates": []}, "arrived_s": 1000.0, "knowledge": {"given": [], "seen": [], "given_up_cost_s": null, "given_down_cost_s": null, "given_warm_up_s": null, "up_stalls": [], "down_stalls": [], "warm_ups_s": [0.0], "resumes_s": [], "save_s": null, "state_bytes": 0.0, "last_resize": null, "node_class": "", "elsewhere": {}, "estimates": {}}, "epoch": 1, "version": 2, "state": "running", "heard_s": 1002.0, "step": 0, "samples": 0.0, "samples_per_s": 0.0, "loss": null, "resizes": 0, "suspends": 0, "steps_lost": 0, "exit_code": null, "finished_s": null, "refused_rounds": 0, "refused_round_s": -Infinity, "no_growth_until_s": -Infinity, "idled_s": 0.0, "worked_s": 0.0, "resumed_s": -Infinity, "said": "", "strays": [], "account": ""}');
INSERT INTO "trainers" VALUES('19',1000.0,'{"request": {"id": "19", "name": "train-c", "backend": "horovod", "sizes": {"low": 1, "high": 1, "only": null}, "user": "bob", "partition": "elastic", "weight": 1.0, "workers_per_node": null, "curve": [], "up_cost_s": null, "down_cost_s": null, "warm_up_s": null, "held": [], "wish": {"gpu": "", "gpus": 0, "features": [], "mix": false, "without": []}, "estimates": []}, "arrived_s": 1000.0, "knowledge": {"given": [], "seen": [], "given_up_cost_s": null, "given_down_cost_s": null, "given_warm_up_s": null, "up_stalls": [], "down_stalls": [], "warm_ups_s": [], "resumes_s": [], "save_s": null, "state_bytes": 0.0, "last_resize": null, "node_class": "", "elsewhere": {}, "estimates": {}}, "epoch": 1, "version": 1, "state": "finished", "heard_s": 1000.0, "step": 0, "samples": 0.0, "samples_per_s": 0.0, "loss": null, "resizes": 0, "suspends": 0, "steps_lost": 0, "exit_code": 0, "finished_s": 1000.0, "refused_rounds": 0, "refused_round_s": -Infinity, "no_growth_until_s": -Infinity, "idled_s": 0.0, "worked_s": 0.0, "resumed_s": -Infinity, "said": "", "strays": [], "account": ""}');
CREATE TABLE usage (
    hour_s INTEGER NOT NULL, user TEXT NOT NULL, account TEXT NOT NULL,
    used_s REAL NOT NULL, training_s REAL NOT NULL, leaving_s REAL NOT NULL,
    PRIMARY KEY (hour_s, user, account)
) WITHOUT ROWID;
INSERT INTO "usage" VALUES(0,'ann','',10.0,10.0,0.0);
INSERT INTO "usage" VALUES(0,'bob','',5.0,5.0,0.0);
CREATE INDEX events_of_trainer ON events (trainer, kind);
CREATE INDEX events_of_kind ON events (kind);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',24);
PRAGMA user_version=3;
COMMIT;
