"""Each line of docs/crowd-attacks.md has tests; they are named here, and must exist."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "crowd-attacks.md").read_text()

# How a line begins, and its tests: FOLDER/FILE and the name, both without "test_".
TESTS = """
opening `?id=104` for every number: web/strangers guessing_ids_erases_nobodys_answers, \
    web/strangers a_personal_link_of_the_service_opens_the_session_elsewhere
using somebody's ID before they come: \
    store/participants a_personal_link_continues_on_another_device_and_beats_a_squatter
entering a study without an invitation: \
    store/participants a_study_may_admit_people_with_its_link_only
withdrawing the answers of somebody else: \
    web/strangers withdrawing_can_be_undone_by_the_experimenter_only, \
    store/participants withdrawn_answers_count_nowhere_and_are_deleted_after_the_delay
filling `total_participants` by plain GETs: web/every_route no_get_changes_anything_for_anybody, \
    web/strangers looking_at_queries_changes_nothing
a refused request that has written something first: web/strangers a_refused_request_writes_nothing
Salmon's addresses: web/salmon a_wrong_or_stolen_answer_stores_nothing, \
    web/salmon salmons_routes_are_off_unless_the_experiment_asks_for_them
acting for a participant from a page of another site: \
    web/strangers pages_of_other_sites_cannot_act_for_a_participant
tokens and sizes of 5,000 digits: web/strangers odd_tokens_are_refused_with_all_headers, \
    web/middleware a_declared_size_of_thousands_of_digits_is_refused_with_all_headers
beginning sessions without end: \
    web/strangers one_address_cannot_begin_sessions_without_end, \
    web/strangers a_session_of_ones_own_begins_no_others_without_end, \
    web/limits addresses_that_are_one_caller, web/limits a_key_does_not_tell_the_address
looking at the items of a study for invited people: \
    web/strangers who_has_no_invitation_sees_no_item
a link that sends people elsewhere after the study: \
    experiment/settings a_link_does_not_choose_where_people_are_sent
more people at once than: web/intruders more_people_than_allowed_do_not_get_in_together
NUL, half surrogates and signs: \
    web/intruders odd_characters_are_no_server_error_on_any_database
line breaks in names and paths: web/intruders no_line_of_the_log_is_made_by_a_request, \
    web/intruders nothing_of_a_request_becomes_a_header
commands of a terminal: \
    serve/paid names_and_lines_of_participants_do_nothing_to_the_terminal, \
    ../cli an_error_that_names_the_text_of_others_does_nothing_to_the_terminal
a `Host` of somebody else: \
    web/odd_requests what_a_request_may_do_depends_on_its_path_and_on_nothing_of_its_host, \
    web/intruders no_redirect_leads_to_the_host_that_a_request_names
other ways to write an address: \
    web/odd_requests no_other_way_to_write_an_address_leads_anywhere
JSON with 60,000 brackets: \
    web/odd_requests json_that_no_page_sends_is_refused_and_stores_nothing, \
    web/odd_requests a_body_in_another_type_is_not_read_as_json
forms with 3,000 fields: web/odd_requests forms_that_no_page_sends_make_no_experiment
headers, addresses, chunk sizes or trailers: \
    serve/protocol what_never_ends_is_refused_and_stops_nobody
connections that never complete a request: serve/protocol a_head_that_does_not_arrive_is_given_up
requests that a proxy could read differently: \
    serve/protocol requests_that_two_parsers_could_read_differently_are_refused
`HEAD`, `OPTIONS`: web/intruders other_methods_reach_nothing
naming another address, host or scheme: \
    serve/proxy no_header_hides_the_address_of_who_guesses_passwords, \
    serve/commands what_a_user_can_put_right_is_said
the same headers without a proxy: \
    web/exhaustion headers_that_a_cache_does_not_look_at_change_no_page, \
    web/odd_requests pages_and_data_of_people_who_signed_in_are_kept_by_no_cache
showing a page in a frame: \
    web/exhaustion no_page_is_framed_kept_by_a_cache_or_tells_where_it_was
reading links, invitations and proofs: \
    web/exhaustion no_page_is_framed_kept_by_a_cache_or_tells_where_it_was
another protocol on the connection: web/exhaustion another_protocol_is_not_begun
60 kB of backslashes in a cookie: web/exhaustion no_cookie_with_backslashes_is_unquoted
fields in JSON that a request does not have: \
    web/exhaustion fields_that_a_request_does_not_have_are_ignored, \
    web/exhaustion an_account_is_made_with_the_rights_that_its_form_names
thirteen kinds of script: \
    web/attacks script_in_item_texts_and_instructions_is_shown_or_removed_never_run, \
    pages/stored_markup no_field_of_an_experiment_runs_a_script, \
    pages/stored_markup nor_does_what_a_participant_sent_on_the_experimenter_s_pages, \
    pages/stored_markup nor_what_is_typed_or_sent_into_any_form
script in file names of uploads: web/attacks script_in_file_names_stays_text
an SVG with a script: web/attacks a_svg_with_a_script_has_no_rights
an inline script on any page: \
    web/attacks pages_allow_no_inline_script_and_nothing_from_outside
CSS that tries to end: \
    web/attacks css_of_an_experimenter_is_a_style_sheet_and_nothing_else
formulas (`=cmd()`: store/export no_cell_is_a_formula, \
    web/uploads names_of_files_are_shown_and_exported_as_text
a ZIP bomb: web/attacks a_zip_bomb_is_not_unpacked
a ZIP whose header lies: \
    web/attacks a_zip_whose_header_lies_about_its_size_is_found_out
ten thousand and one files: web/attacks a_zip_bomb_is_not_unpacked
`../../etc/cron.d/x`: web/attacks paths_out_of_a_zip_are_refused, \
    web/attacks links_and_passwords_in_a_zip_are_refused
HTML, programs, PDF: web/attacks what_is_called_png_must_be_one
`!!python/object/apply: web/attacks yaml_tricks_are_refused_with_a_sentence
aliases of aliases: web/attacks yaml_tricks_are_refused_with_a_sentence
the same key twice: experiment/load all_problems_at_once_each_with_line_and_key
two files with one name: experiment/files of_two_files_of_one_name_none_wins_silently, \
    experiment/files names_that_differ_in_case_or_in_their_accents_are_different_files
bzip2 and LZMA in a ZIP: \
    experiment/files packings_that_python_unpacks_at_once_are_refused
numbers that are `true`: experiment/settings a_number_is_neither_true_nor_infinite
settings that would fail when people come: \
    experiment/settings what_would_fail_when_people_come_is_refused_at_the_start
entities in an SVG: web/uploads pictures_with_entities_or_absurd_sizes_are_refused
50 kB of `<a `: experiment/html html_of_any_kind_is_read_in_one_pass
files that are a picture and a page at once: web/uploads a_file_that_is_also_a_page_is_no_page, \
    web/uploads a_page_that_only_begins_as_a_film_sound_or_picture_is_refused, \
    web/intruders a_picture_is_served_to_be_looked_at_only
addresses inside the server's network: \
    web/uploads the_server_fetches_no_address_that_it_is_given
`items: ../secret.csv`: web/attacks settings_cannot_reach_out_of_their_folder
a completion link `javascript:…`: web/attacks yaml_tricks_are_refused_with_a_sentence
states of samplers in an archive: \
    store/archive_rows states_that_fail_when_their_participant_comes_back_are_refused
rows in an archive that contradict each other: \
    store/archive rows_that_the_database_refuses_are_a_sentence
an analysis that somebody has edited: \
    serve/analysis an_analysis_that_somebody_has_edited_is_one_sentence
a tampered archive: store/archive a_bad_archive_is_refused_with_its_reason, \
    store/archive what_is_no_archive_is_refused
a picture of a few kilobytes: \
    experiment/decoder too_many_pixels_are_refused_before_they_are_unpacked
a picture that crashes its decoder: \
    experiment/decoding a_decoder_that_dies_or_hangs_is_replaced, \
    experiment/decoding the_memory_of_a_decoder_is_limited
a decoder that a picture has taken over: \
    experiment/decoding a_decoder_that_dies_or_hangs_is_replaced
a program or a second file behind a picture: \
    experiment/metadata no_place_and_the_same_pixels, \
    experiment/decoding pictures_are_decoded_and_lose_where_they_were_taken
`style` that loads: experiment/inline_style nothing_passes_that_could_load_or_escape, \
    experiment/html nobody_writes_unchecked_style_into_that_attribute
one byte of a long film: web/media_routes a_byte_of_a_film_costs_no_copy_of_it
a backup with a bomb: \
    serve/backup a_hostile_backup_is_refused_with_a_sentence_and_nothing_is_stored
an account that somebody has written into a backup: \
    serve/backup nobody_adds_an_account_to_a_backup
asking for pictures or the dashboard of a deleted experiment: \
    web/media_routes pictures_and_dashboard_of_a_deleted_experiment_are_gone
bodies that arrive slowly: web/middleware \
    a_body_that_does_not_arrive_is_given_up_and_one_with_files_later
uploads of strangers: web/attacks uploads_of_strangers_are_not_even_read, \
    web/attacks large_bodies_are_refused_while_they_come_in
an answer to somebody else's query: web/attacks forged_answers_are_not_stored, \
    store/answers nobody_answers_for_somebody_else
a winner that is the head: \
    store/answers what_cannot_be_an_answer_is_refused_and_nothing_is_stored
the same answer sixteen times at once: store/answers many_at_once_store_an_answer_once, \
    store/schema the_database_itself_refuses_a_second_answer
six tabs answering: \
    store/session tabs_at_once_get_the_same_queries_and_no_more_than_the_quota
skipping without end: \
    web/exhaustion skipping_without_end_does_not_use_up_the_queries_of_others
a forged participant's token: web/attacks forged_answers_are_not_stored, \
    store/tokens a_token_is_not_valid_for_another_person_even_with_the_same_number
a winner, a count or a time that is `true`: web/participant_api true_is_not_a_number
after withdrawing: web/replays who_has_withdrawn_cannot_begin_again
refusing consent after answering: web/replays refusing_consent_is_no_way_around_withdrawing
answers while the experiment is paused: \
    web/replays an_experiment_may_be_paused_while_people_answer, \
    web/replays answers_that_arrive_after_their_experiment_was_deleted_go_nowhere, \
    store/tokens a_deleted_experiment_does_not_lend_its_id
withdrawing and answering at the same moment: \
    web/replays withdrawing_while_answering_leaves_no_answer_that_counts
asking which queries are attention checks: \
    web/participant_api checks_look_like_any_other_query
settings, positions or other participants: \
    web/attacks participants_see_neither_settings_nor_positions
names with NUL: store/participants any_name_can_be_stored
NaN, infinite, negative: web/participant_api a_strange_clock_does_not_cost_the_answer
whatever the OpenAPI description: web/openapi
guessing passwords, also in parallel: web/attacks guessing_passwords_ends_soon, \
    web/attacks parallel_guesses_are_counted_before_they_are_checked, \
    web/meanwhile an_attempt_is_counted_once_also_by_two_processes
guessing at a colleague's password: \
    web/intruders ones_own_password_does_not_reset_the_count_of_guesses
locking out the owner: web/accounts guesses_from_many_addresses_do_not_lock_out_the_owner
a session planted before signing in: \
    web/attacks a_session_planted_before_signing_in_is_worth_nothing, \
    web/intruders signing_in_again_ends_the_session_of_this_browser
reading the cookie from a script: \
    web/attacks cookies_are_out_of_reach_for_scripts_and_other_sites, \
    web/cookies under_tls_only_the_prefix_counts
writing from another site (CSRF): web/attacks a_request_that_another_site_makes_is_refused, \
    web/attacks the_sign_in_form_cannot_be_sent_by_another_site
being sent elsewhere after signing in: web/attacks signing_in_leads_nowhere_else
a password that everybody tries first: web/passwords these_are_refused, \
    web/account_routes a_password_that_others_know_must_be_changed_first
reading or changing the experiment of a colleague: \
    web/account_routes without_a_role_an_experiment_does_not_exist, \
    web/account_routes each_role_may_do_its_part_and_no_more
every route, with every kind of account: \
    web/every_route who_has_no_right_is_refused_and_changes_nothing, \
    web/every_route every_route_of_the_application_has_a_row
every route that changes something, from another site: \
    web/every_route no_page_of_another_site_can_send_it
a session or token in the address: \
    web/intruders a_token_or_session_in_the_address_counts_nothing
sessions and tokens of a deleted account: \
    web/intruders a_deleted_account_leaves_nothing_behind
changing the password while an administrator: \
    web/intruders deleting_an_account_while_its_password_changes_makes_no_administrator
sessions and tokens in a restored backup: \
    web/intruders a_restored_backup_brings_no_sessions_and_no_tokens_back
restoring the archive of an experiment: \
    web/replays a_copy_of_an_experiment_signs_nothing_for_the_original
signing in while the password changes: \
    web/meanwhile a_password_that_ends_while_it_is_checked_opens_no_session
creating, deleting, giving roles: \
    web/meanwhile a_role_that_is_taken_away_ends_what_is_on_its_way, \
    web/meanwhile an_administrator_who_is_thrown_out_makes_no_accounts_any_more, \
    web/meanwhile a_token_that_is_revoked_while_files_are_read_creates_nothing
two administrators who delete: web/meanwhile two_administrators_do_not_delete_one_another
two colleagues who use up: web/meanwhile a_code_is_used_up_once_also_by_two_processes
an account with the name of a former one: \
    web/intruders an_account_does_not_see_what_a_former_one_of_its_name_did
errors of the worker in experiments: \
    web/health what_the_worker_says_about_others_is_not_told
reading the database file: \
    serve/commands a_database_that_everybody_can_read_is_named_with_the_remedy
a stolen or forgotten token: \
    web/account_routes a_token_acts_within_its_scope_its_experiment_and_its_time, \
    web/intruders a_token_never_deletes_gives_roles_or_manages_accounts
a session on a computer: web/account_routes a_session_that_is_not_used_ends
finding out by the time: web/replays unknown_names_cost_as_much_as_known_ones
an account called `Mary`: web/replays names_of_accounts_are_not_look_alikes
trying one-time codes: \
    web/account_routes codes_cannot_be_tried_one_after_the_other
replacing the app of an account: web/account_routes codes_of_an_app_are_demanded_and_used_once
tokens that are expired: web/replays a_token_that_has_ended_opens_no_route
a one-time code that was seen: \
    web/intruders one_code_opens_one_session_also_in_two_processes, \
    web/intruders a_code_of_yesterday_is_not_accepted_when_the_clock_goes_back
using a session after signing out: web/auth signing_out_ends_the_session_on_the_server
finding the password, the session: web/attacks passwords_and_addresses_are_not_kept, \
    web/account_routes the_database_holds_hashes_of_tokens_only
reading insides of the server: web/attacks errors_show_no_insides
"""


def lines(section_from, section_to):
    part = PAGE.split(section_from)[1].split(section_to)[0]
    rows = [row for row in part.splitlines() if row.startswith("| ")]
    return [row.strip("| ") for row in rows if not row.startswith(("| tried", "| fault"))]


ATTACKS = lines("## Strangers", "## Faults")
FAULTS = lines("## Faults", "`/health/live` says")


def table():
    for entry in TESTS.strip().splitlines():
        begin, _, tests = entry.rpartition(": ")
        while not any(row.startswith(begin) for row in ATTACKS) and ": " in begin:
            begin, _, more = begin.rpartition(": ")
            tests = f"{more}: {tests}"
        yield begin, [test.split() for test in tests.split(", ")]


def source(place):
    folder, _, file = place.rpartition("/")
    return (ROOT / "tests" / "crowd" / folder / f"test_{file}.py").read_text()


def test_each_line_has_its_tests():
    begins = [begin for begin, _ in table()]
    for row in ATTACKS:
        assert sum(row.startswith(begin) for begin in begins) == 1, row
    assert len(begins) == len(ATTACKS)


@pytest.mark.parametrize(("begin", "tests"), list(table()))
def test_and_the_tests_exist(begin, tests):
    for place, *name in tests:
        text = source(place)
        assert not name or re.search(rf"^(async )?def test_{name[0]}\b", text, re.MULTILINE), begin


@pytest.mark.parametrize("row", FAULTS)
def test_the_commands_of_the_faults_run_something(row):
    """Files exist, and each word after -k is in the name of a test or a file."""
    chaos = (ROOT / "benchmarks" / "serve_chaos.py").read_text()
    for command in re.findall(r"`((?:pytest|serve_chaos\.py) [^`]+)`", row.rpartition("|")[2]):
        program, *words = shlex.split(command)
        if program == "serve_chaos.py":
            assert f'"{words[1]}"' in chaos, command
            continue
        options = words[words.index("-k") + 1].split(" or ") if "-k" in words else []
        paths = [ROOT / word for word in words if word.startswith("tests/")]
        files = [f for path in paths for f in ([path] if path.is_file() else path.rglob("test_*"))]
        assert files, command
        assert all(path.exists() for path in paths), command
        for option in options:
            named = any(re.search(rf"def test_\w*{option}", f.read_text()) for f in files)
            assert named or any(option in file.stem for file in files), option
