"""Every reason to reject a row and every oddity that is tolerated: one table each, code -> meaning."""

from __future__ import annotations

from collections.abc import Mapping

REJECT_CODES: Mapping[str, str] = {
    # the row itself
    "malformed_row": "the CSV line has more or fewer fields than the header",
    "missing_class": "the class (column `distribution`) is empty",
    "prompt_too_long": "the prompt has more characters than allowed",
    "bad_prompt_file": "the prompt file of a clip folder is not UTF-8 text, or is far too large",
    "bad_metadata": "the metadata file of a clip folder is not a JSON object with the expected text fields",
    "duplicate_row": "every field equals those of an earlier row",
    "duplicate_content": "picture, buttons, prompt and video equal those of an earlier row",
    "not_in_episodes": "the episode index given does not name this clip",
    # paths
    "missing_path": "the path of the video or of the action table is empty",
    "bad_path": "the path cannot be a file name here",
    "outside_data_root": "the path, or what a link on it points to, lies outside the data root",
    "not_a_file": "the path is a folder or a special file",
    # video
    "missing_video": "the video does not exist",
    "empty_video": "the video has 0 bytes",
    "unreadable_video": "the video cannot be opened or holds no video stream",
    "truncated_video": "the video's data end early or are damaged",
    "decoder_crashed": "reading the clip ended the worker process",
    "one_frame": "the video has a single frame",
    "too_short": "too few frames for the smallest number of latent slots",
    "too_many_frames": "more frames than the model is asked for",
    "frame_count_mismatch": "the container declares another number of frames than can be decoded",
    "no_fps": "the video states no frame rate",
    "wrong_fps": "the frame rate is not the one expected",
    "variable_frame_rate": "frames are not evenly spaced in time",
    "picture_size": "the picture is too large, too small or too far from the model's aspect",
    # first frame of a clip without video
    "missing_first_frame": "there is neither a video nor a first frame",
    "empty_first_frame": "the first-frame picture has 0 bytes",
    "unreadable_first_frame": "the first-frame picture cannot be read",
    # action table
    "missing_actions": "the action table does not exist",
    "empty_actions": "the action table has 0 bytes",
    "unreadable_actions": "the action table is not a readable Parquet file",
    "actions_too_large": "the action table claims more bytes, rows or columns than allowed",
    "missing_button_column": "a button column is missing",
    "duplicate_column": "a column name appears twice",
    "column_type": "a column that is needed does not hold plain numbers",
    "zero_rows": "the action table has no rows",
    "rows_not_frames": "the action table has another number of rows than the video has frames",
    "not_a_number": "a value is missing, NaN or infinite",
    "button_values": "a button value is neither 0 nor 1",
    "frame_ids": "the frame ids do not count up by 1",
}

WARNING_CODES: Mapping[str, str] = {
    "no_video": "no video: there is no reference, stages that need one skip or refuse this condition",
    "video_cut": "frames at the end are not used: the length is cut to 1 + a multiple of the temporal factor",
    "presses_dropped": "presses outside the first row of their window, which the hold drops",
    "blank_prompt": "the prompt was blank and became the stock prompt",
    "prompt_differs": "prompt.txt and metadata.json disagree; prompt.txt was used",
    "unknown_class": "the class is not in the list of known classes",
    "extra_columns": "columns of the action table that nobody reads",
    "missing_state_columns": "columns of the game's state are missing: no evaluation against them",
    "frame_id_column": "the frame id column is missing or does not start at 0",
    "frames_undeclared": "the container does not declare its number of frames; they were counted",
    "hud_disagrees": "elements of the HUD whose reading off the first frame contradicts the state columns",
    "backslash_path": "the path was written with backslashes",
}


class RowRejected(Exception):
    """A row that cannot be used, with its reason.

    Args:
        code: A key of `REJECT_CODES`.
        detail: What was found, for people.
    """

    def __init__(self, code: str, detail: str) -> None:
        if code not in REJECT_CODES:
            raise AssertionError(f"unknown reason code {code}")
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


def warning(code: str, count: int | None = None) -> str:
    """A warning as it is stored: the code, with `:count` where a number says how much."""
    if code not in WARNING_CODES:
        raise AssertionError(f"unknown warning code {code}")
    return code if count is None else f"{code}:{count}"


def warning_code(stored: str) -> str:
    """The code of a stored warning."""
    return stored.split(":", 1)[0]
