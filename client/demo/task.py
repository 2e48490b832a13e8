"""The verifiable task: hexadecimal addition, written with the least significant digit first.

A prompt is `digits` digits of each number and the two signs, as in "A40+F31=", and its only right
answer is the sum and a stop token, as in "974." with as many digits as it has but no fewer than the
summands.
"""
import torch

BASE = 16
PLUS, EQUALS, STOP = BASE, BASE + 1, BASE + 2
VOCABULARY_SIZE = BASE + 3
SYMBOLS = "0123456789ABCDEF+=."


class Addition:
    """Problems of one length.

    Every prompt has `prompt_length` tokens; an answer has `response_length` at most.
    """

    def __init__(self, digits):
        self.digits = digits
        self.prompt_length = 2 * digits + 2
        self.response_length = digits + 2

    def problems(self, count, generator):
        """Random problems: prompts int64 [count, prompt_length], answers int64 [count,
        response_length].

        An answer that is shorter than response_length is filled up with stop tokens.
        """
        summands = torch.randint(BASE, (2, count, self.digits), generator=generator)
        answers = torch.full((count, self.response_length), STOP)
        carry = torch.zeros(count, dtype=torch.int64)
        for column in range(self.digits):
            total = summands[0, :, column] + summands[1, :, column] + carry
            answers[:, column] = total % BASE
            carry = total // BASE
        answers[:, self.digits] = torch.where(carry > 0, carry, STOP)
        signs = torch.tensor([PLUS, EQUALS]).repeat(count, 1)
        prompts = torch.cat([summands[0], signs[:, :1], summands[1], signs[:, 1:]], dim=1)
        return prompts, answers

    @staticmethod
    def lengths(responses):
        """int64 [count]: the tokens of each response up to and including its first stop token, or
        all of them."""
        stopped = responses == STOP
        first = stopped.int().argmax(dim=1) + 1
        return torch.where(stopped.any(dim=1), first, responses.shape[1])

    def rewards(self, responses, answers):
        """float32 [count]: 1 where the response is the answer up to its stop token, else 0."""
        length = self.lengths(answers)
        due = torch.arange(answers.shape[1]) < length[:, None]
        return ((responses == answers) | ~due).all(dim=1).float()


def text(tokens):
    """The tokens as people read them."""
    return "".join(SYMBOLS[token] for token in tokens)
