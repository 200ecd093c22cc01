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
INSERT INTO "answer" VALUES(1,1,679728823885617,5,1.0,0.1,1000.0);
INSERT INTO "answer" VALUES(2,1,3715667912798679,1,1.0,0.1,1000.0);
INSERT INTO "answer" VALUES(3,1,148964006620591,5,1.0,0.1,1000.0);
INSERT INTO "answer" VALUES(4,1,2648628632507323,5,1.0,0.1,1000.0);
INSERT INTO "answer" VALUES(5,1,1622339855025878,0,1.0,0.1,1000.0);
CREATE TABLE api_token (
	id INTEGER NOT NULL, 
	token_hash VARCHAR(64) NOT NULL, 
	experimenter_id INTEGER NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	scope VARCHAR(16) NOT NULL, 
	experiment_id INTEGER, 
	created FLOAT NOT NULL, 
	expires FLOAT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (token_hash), 
	FOREIGN KEY(experimenter_id) REFERENCES experimenter (id) ON DELETE CASCADE, 
	FOREIGN KEY(experiment_id) REFERENCES experiment (id) ON DELETE CASCADE
);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	experimenter VARCHAR(100) NOT NULL, 
	action VARCHAR(64) NOT NULL, 
	subject TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "audit" VALUES(1,1000.0,'experimenter','delete participant','eggs participant 3');
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
INSERT INTO "experiment" VALUES(1,'eggs','{"name": "eggs", "title": "Similarity judgements", "language": "en", "instructions": "You will see one item on top and two below. Choose the one below that is more like the one on top.", "consent": {"text": "Please agree", "version": "1"}, "practice": [], "checks": {"queries": [{"head": 0, "left": 1, "right": 5, "winner": 1}], "every": 2, "repeat_every": null, "fail_after": null}, "breaks": {"every": null, "text": "", "seconds": 0}, "skip": false, "keyboard": true, "debrief": "<b>Thank you!</b>", "completion": {}, "texts": {}, "slots": {"top": "", "middle": "", "bottom": ""}, "css": "", "media_hosts": [], "pause_between": 150, "samplers": {"arr": {"class": "ARR", "random_share": null, "pairs": null, "items": null, "queries": null}}, "shares": null, "fixed": {}, "embedding": {"dimensions": 2, "noise": "auto", "alpha": null, "lapse": null, "reliability": true, "warmup": null, "temper": 0.3}, "target_accuracy": null, "participants": {"answers": 6, "total_answers": null, "total_participants": null, "returning": "resume", "entry": "open", "id_parameters": ["participant", "puid", "PROLIFIC_PID", "workerId", "id"], "keep_parameters": ["STUDY_ID", "SESSION_ID", "assignmentId", "hitId", "survey_code"], "pseudonyms": false, "withdraw": true, "withdrawn_days": 7.0, "one_sampler": false}, "salmon_routes": false, "seed": 0}',6,'running',1000.0,1,0,NULL);
CREATE TABLE experimenter (
	id INTEGER NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	password_hash TEXT NOT NULL, 
	created FLOAT NOT NULL, 
	admin BOOLEAN DEFAULT 0 NOT NULL, 
	must_change BOOLEAN DEFAULT 0 NOT NULL, 
	totp VARCHAR(64), 
	totp_step BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (name)
);
INSERT INTO "experimenter" VALUES(1,'experimenter','$argon2id$v=19$m=65536,t=3,p=4$vq04h1gHA7jCI/b++gMWlw$XFYYJTU92l+22hVdDuwQIrKahX0z7VawpACznwrAEpg',1000.0,1,0,NULL,0);
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
INSERT INTO "item" VALUES(1,4,'text','4','','','4');
INSERT INTO "item" VALUES(1,5,'text','5','','','5');
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
INSERT INTO "meta" VALUES('schema','4');
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
	withdrawn FLOAT, 
	proven BOOLEAN DEFAULT 0 NOT NULL, 
	browser VARCHAR(64) DEFAULT '' NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT participant_external UNIQUE (experiment_id, external), 
	FOREIGN KEY(experiment_id) REFERENCES experiment (id) ON DELETE CASCADE
);
INSERT INTO "participant" VALUES(1,1,'anna','anna','active',NULL,1000.0,1000.0,1000.0,'1','','{"participant": "anna"}','{" check": {"n_items": 6, "seed": 1000003, "turn": 3, "deck": [], "cover": []}}',0,6,4,0,1,NULL,0,'');
INSERT INTO "participant" VALUES(2,1,'refused','refused','active','no_consent',1000.0,1000.0,NULL,NULL,'','{"participant": "refused"}','{}',0,0,0,0,0,NULL,0,'');
INSERT INTO "participant" VALUES(3,1,'bert','bert','active',NULL,1000.0,1000.0,1000.0,'1','','{"participant": "bert"}','{" check": {"n_items": 6, "seed": 3000009, "turn": 1, "deck": [], "cover": []}}',0,3,1,0,0,NULL,0,'');
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
CREATE TABLE role (
	experiment_id INTEGER NOT NULL, 
	experimenter_id INTEGER NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	PRIMARY KEY (experiment_id, experimenter_id), 
	FOREIGN KEY(experiment_id) REFERENCES experiment (id) ON DELETE CASCADE, 
	FOREIGN KEY(experimenter_id) REFERENCES experimenter (id) ON DELETE CASCADE
);
INSERT INTO "role" VALUES(1,1,'owner');
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
INSERT INTO "served" VALUES(1,679728823885617,1,1,'query',0,5,3,3,5,NULL,'arr',NULL,1,0,1000.0,0);
INSERT INTO "served" VALUES(1,3715667912798679,1,2,'check',0,1,5,1,5,1,'check',NULL,0,0,1000.0,0);
INSERT INTO "served" VALUES(1,148964006620591,1,3,'query',3,5,0,0,5,NULL,'arr',NULL,1,0,1000.0,0);
INSERT INTO "served" VALUES(1,2648628632507323,1,4,'check',0,5,1,1,5,1,'check',NULL,0,0,1000.0,0);
INSERT INTO "served" VALUES(1,509319994242307,1,5,'query',4,3,2,2,3,NULL,'arr',NULL,1,0,1000.0,1);
INSERT INTO "served" VALUES(1,3710849813698011,1,6,'check',0,1,5,1,5,1,'check',NULL,0,0,1000.0,1);
INSERT INTO "served" VALUES(1,1622339855025878,3,1,'query',2,0,4,0,4,NULL,'arr',NULL,1,0,1000.0,0);
INSERT INTO "served" VALUES(1,3882172164946675,3,2,'check',0,1,5,1,5,1,'check',NULL,0,0,1000.0,1);
INSERT INTO "served" VALUES(1,1404144756995516,3,3,'query',4,5,1,1,5,NULL,'arr',NULL,1,0,1000.0,1);
CREATE TABLE session (
	token_hash VARCHAR(64) NOT NULL, 
	experimenter_id INTEGER NOT NULL, 
	csrf VARCHAR(64) NOT NULL, 
	expires FLOAT NOT NULL, 
	created FLOAT DEFAULT '0' NOT NULL, 
	seen FLOAT DEFAULT '0' NOT NULL, 
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
	beat BIGINT DEFAULT '0' NOT NULL, 
	turns INTEGER DEFAULT '0' NOT NULL, 
	turn_seconds FLOAT, 
	error TEXT, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_sign_in_failure_key ON sign_in_failure ("key");
CREATE INDEX queue_order ON queue (experiment_id, version, sampler, place);
CREATE INDEX served_seen ON served (participant_id, head, low, high);
CREATE INDEX served_open ON served (participant_id, number) WHERE open;
CREATE INDEX answer_order ON answer (experiment_id, seq);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('answer',5);
COMMIT;
