#include "client/cli/quit_key.h"

#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <initializer_list>

namespace sis {
namespace {

// Of the process, as handlers of signals read them. Set before the handlers are.
termios before, watching;
volatile std::sig_atomic_t watches = 0;

// Not in the background, where the terminal is somebody else's, and setting it would stop us. What
// was typed meanwhile is dropped.
void Set(const termios& settings) {
  const int error = errno;
  if (tcgetpgrp(STDIN_FILENO) == getpgrp()) tcsetattr(STDIN_FILENO, TCSAFLUSH, &settings);
  errno = error;
}

void Quit(int) {
  Set(before);
  _exit(0);
}

void EndBySignal(int signal) {
  Set(before);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Stop(int) {
  Set(before);
  std::raise(SIGSTOP);
}

void GoOn(int) {
  if (watches != 0) Set(watching);
}

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  if (action.sa_handler == SIG_IGN) return;  // as under nohup
  action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

QuitKey::QuitKey() {
  if (isatty(STDOUT_FILENO) == 0 || tcgetattr(STDIN_FILENO, &before) != 0) return;
  watching = before;
  watching.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  // The terminal itself makes a signal of it, which comes whatever the program waits for.
  watching.c_cc[VQUIT] = 'q';
  watches = 1;
  Handle(SIGQUIT, Quit);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) Handle(signal, EndBySignal);
  Handle(SIGTSTP, Stop);
  Handle(SIGCONT, GoOn);
  Set(watching);
}

QuitKey::~QuitKey() {
  if (watches == 0) return;
  watches = 0;
  // Handlers stay: a signal that comes before this line has to do the same.
  Set(before);
}

}  // namespace sis
