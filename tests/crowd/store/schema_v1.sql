BEGIN TRANSACTION;
CREATE TABLE answer (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	experiment_id INTEGER NOT NULL, 
	query_id BIGINT NOT NULL, 
	winner INTEGER, 
	response_time FLOAT, 
	network_latency FLOAT, 
	received FLOAT NOT NULL, 
	CONSTRAINT one_answer_per_query UNIQUE (experiment_id, query_id), 
	CONSTRAINT answer_to_a_served_query FOREIGN KEY(experiment_id, query_id) REFERENCES served (experiment_id, id) ON DELETE CASCADE, 
	FOREIGN KEY(experiment_id) REFERENCES experiment (id) ON DELETE CASCADE
);
INSERT INTO "answer" VALUES(1,1,2326380552887861,3,1.0,0.1,1002.0);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	experimenter VARCHAR(100) NOT NULL, 
	action VARCHAR(64) NOT NULL, 
	subject TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE experiment (
	id INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	settings JSON NOT NULL, 
	n_items INTEGER NOT NULL, 
	state VARCHAR(16) DEFAULT 'running' NOT NULL, 
	created FLOAT NOT NULL, 
	revision INTEGER DEFAULT '0' NOT NULL, 
	queue_version INTEGER DEFAULT '0' NOT NULL, 
	worker_state JSON, 
	PRIMARY KEY (id), 
	UNIQUE (name)
);
INSERT INTO "experiment" VALUES(1,'eggs','{"name": "eggs", "title": "Similarity judgements", "language": "en", "instructions": "You will see one item on top and two below. Choose the one below that is more like the one on top.", "consent": null, "practice": [], "checks": {"queries": [], "every": 10, "repeat_every": null, "fail_after": null}, "breaks": {"every": null, "text": "", "seconds": 0}, "skip": false, "keyboard": true, "debrief": "<b>Thank you!</b>", "completion": {}, "texts": {}, "slots": {"top": "", "middle": "", "bottom": ""}, "css": "", "media_hosts": [], "pause_between": 150, "samplers": {"arr": {"class": "ARR", "random_share": null, "pairs": null, "items": null, "queries": null}}, "shares": null, "fixed": {}, "embedding": {"dimensions": 2, "noise": "tste", "lapse": 0.05, "warmup": null, "temper": 0.3}, "target_accuracy": null, "participants": {"answers": 3, "total_answers": null, "total_participants": null, "returning": "resume", "id_parameters": ["participant", "puid", "PROLIFIC_PID", "workerId", "id"], "keep_parameters": ["STUDY_ID", "SESSION_ID", "assignmentId", "hitId", "survey_code"], "pseudonyms": false, "withdraw": true, "one_sampler": false}, "seed": 0}',4,'running',1000.0,0,0,NULL);
CREATE TABLE experimenter (
	id INTEGER NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	password_hash TEXT NOT NULL, 
	created FLOAT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (name)
);
INSERT INTO "experimenter" VALUES(1,'experimenter','$argon2id$v=19$m=65536,t=3,p=4$vq04h1gHA7jCI/b++gMWlw$XFYYJTU92l+22hVdDuwQIrKahX0z7VawpACznwrAEpg',1000.0);
CREATE TABLE item (
	experiment_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	text TEXT NOT NULL, 
	html TEXT NOT NULL, 
	media VARCHAR(100) NOT NULL, 
	alt TEXT NOT NULL, 
	PRIMARY KEY (experiment_id, number), 
	FOREIGN KEY(experiment_id) REFERENCES experiment (id) ON DELETE CASCADE
);
INSERT INTO "item" VALUES(1,0,'text','0','','','0');
INSERT INTO "item" VALUES(1,1,'text','1','','','1');
INSERT INTO "item" VALUES(1,2,'text','2','','','2');
INSERT INTO "item" VALUES(1,3,'text','3','','','3');
CREATE TABLE media (
	experiment_id INTEGER NOT NULL, 
	"key" VARCHAR(100) NOT NULL, 
	name TEXT NOT NULL, 
	type VARCHAR(50) NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (experiment_id, "key"), 
	FOREIGN KEY(experiment_id) REFERENCES experiment (id) ON DELETE CASCADE
);
CREATE TABLE meta (
	"key" VARCHAR(64) NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('schema','1');
INSERT INTO "meta" VALUES('secret','0da3104747d40f9d5544d29124f49529bc68d9dc54f27ec7aa49dadf2b60f733');
CREATE TABLE model (
	experiment_id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	n_answers INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	seconds FLOAT NOT NULL, 
	loss FLOAT, 
	lapse FLOAT, 
	accuracy FLOAT, 
	tested INTEGER NOT NULL, 
	positions JSON, 
	PRIMARY KEY (experiment_id, version), 
	FOREIGN KEY(experiment_id) REFERENCES experiment (id) ON DELETE CASCADE
);
CREATE TABLE participant (
	id INTEGER NOT NULL, 
	experiment_id INTEGER NOT NULL, 
	external VARCHAR(200), 
	name VARCHAR(200) NOT NULL, 
	state VARCHAR(16) DEFAULT 'active' NOT NULL, 
	outcome VARCHAR(16), 
	created FLOAT NOT NULL, 
	last FLOAT NOT NULL, 
	consented FLOAT, 
	consent_version VARCHAR(64), 
	device VARCHAR(16) DEFAULT '' NOT NULL, 
	parameters JSON NOT NULL, 
	personal JSON NOT NULL, 
	practised INTEGER DEFAULT '0' NOT NULL, 
	asked INTEGER DEFAULT '0' NOT NULL, 
	answered INTEGER DEFAULT '0' NOT NULL, 
	skipped INTEGER DEFAULT '0' NOT NULL, 
	failed INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT participant_external UNIQUE (experiment_id, external), 
	FOREIGN KEY(experiment_id) REFERENCES experiment (id) ON DELETE CASCADE
);
INSERT INTO "participant" VALUES(1,1,'104','104','active',NULL,1001.0,1002.0,NULL,NULL,'','{"id": "104"}','{}',0,2,1,0,0);
CREATE TABLE queue (
	id INTEGER NOT NULL, 
	experiment_id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	sampler VARCHAR(64) NOT NULL, 
	place INTEGER NOT NULL, 
	head INTEGER NOT NULL, 
	"left" INTEGER NOT NULL, 
	"right" INTEGER NOT NULL, 
	score FLOAT, 
	PRIMARY KEY (id), 
	FOREIGN KEY(experiment_id) REFERENCES experiment (id) ON DELETE CASCADE
);
CREATE TABLE served (
	experiment_id INTEGER NOT NULL, 
	id BIGINT NOT NULL, 
	participant_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	head INTEGER NOT NULL, 
	"left" INTEGER NOT NULL, 
	"right" INTEGER NOT NULL, 
	low INTEGER NOT NULL, 
	high INTEGER NOT NULL, 
	winner INTEGER, 
	sampler VARCHAR(64) NOT NULL, 
	score FLOAT, 
	fallback BOOLEAN NOT NULL, 
	version INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	open BOOLEAN NOT NULL, 
	PRIMARY KEY (experiment_id, id), 
	FOREIGN KEY(experiment_id) REFERENCES experiment (id) ON DELETE CASCADE, 
	FOREIGN KEY(participant_id) REFERENCES participant (id) ON DELETE CASCADE
);
INSERT INTO "served" VALUES(1,2326380552887861,1,1,'query',0,3,1,1,3,NULL,'arr',NULL,1,0,1001.0,0);
INSERT INTO "served" VALUES(1,740345832995421,1,2,'query',2,0,1,0,1,NULL,'arr',NULL,1,0,1001.0,1);
CREATE TABLE session (
	token_hash VARCHAR(64) NOT NULL, 
	experimenter_id INTEGER NOT NULL, 
	csrf VARCHAR(64) NOT NULL, 
	expires FLOAT NOT NULL, 
	PRIMARY KEY (token_hash), 
	FOREIGN KEY(experimenter_id) REFERENCES experimenter (id) ON DELETE CASCADE
);
CREATE TABLE sign_in_failure (
	id INTEGER NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE worker (
	id INTEGER NOT NULL, 
	owner VARCHAR(64) NOT NULL, 
	seen FLOAT NOT NULL, 
	turns INTEGER DEFAULT '0' NOT NULL, 
	turn_seconds FLOAT, 
	error TEXT, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_sign_in_failure_key ON sign_in_failure ("key");
CREATE INDEX queue_order ON queue (experiment_id, version, sampler, place);
CREATE INDEX served_seen ON served (participant_id, head, low, high);
CREATE INDEX served_open ON served (participant_id, number) WHERE open;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('answer',1);
COMMIT;
