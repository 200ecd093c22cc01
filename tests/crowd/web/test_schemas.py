"""JSON of sessions."""


def test_the_completion_link_knows_what_the_first_link_said(site):
    redirect = "https://app.prolific.com/submissions/complete?cc=C1&p={PROLIFIC_PID}&s={STUDY_ID}"
    site.add(
        "name: paid\nitems: 5\nparticipants: {answers: 1}\n"
        f'completion: {{done: {{code: "C-{{participant}}", redirect: "{redirect}"}}}}\n'
    )
    client, path = site.visitor(), "/api/v1/experiments/paid"
    body = {"parameters": {"PROLIFIC_PID": "a&b=c", "STUDY_ID": "x y", "other": "z"}}
    session = client.post(f"{path}/participants", json=body).json()
    query = session["queries"][0]
    end = client.post(
        f"{path}/answers", json={"query": query["id"], "winner": query["left"]["item"]}
    ).json()
    assert end["completion"]["code"] == "C-a&b=c"
    assert end["completion"]["redirect"].endswith("cc=C1&p=a%26b%3Dc&s=x%20y")
