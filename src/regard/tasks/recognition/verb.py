"""`transcribe`, as it is declared."""

from regard.tasks.verb import SoundFile, TaskOptions, Verb, option


class TranscribeOptions(TaskOptions):
    """Transcribe audio files or a live stream.

    arecord -q -t raw -f S16_LE -r 8000 | regard transcribe morse -

    Text is printed as it is recognised: one line per file, with its name if there are several;
    live, one line per word or pause, and on a terminal one growing line. Everything else goes to
    standard error. Exit code 1: a file could not be read in full, or a confidence is low. 2: no
    file could be read.
    """

    beam_width: int = option(
        default=1, ge=1, served=64, flag="beam", help="CTC beam width; 1 takes the best path."
    )
    normalize_peak: bool = option(
        default=True, flag="normalize", help="Normalise level and noise floor to those of training."
    )


class Transcribe(Verb):
    """Recognition of speech or Morse code."""

    verb, hub_tag, can_stream = "transcribe", "automatic-speech-recognition", True
    reads, Options = SoundFile(), TranscribeOptions
