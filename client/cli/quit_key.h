// The key that ends what watches.
#pragma once

namespace sis {

// While it lives, at a terminal, the key q ends the program with status 0, also while a call waits,
// and what is typed isn't shown. The terminal is as it was after every way out, signals too, and
// while the program is stopped. One at a time.
class QuitKey {
 public:
  QuitKey();
  ~QuitKey();
  QuitKey(const QuitKey&) = delete;
  QuitKey& operator=(const QuitKey&) = delete;
};

}  // namespace sis
