#include "tests/conformance/backends.h"

#include "kernels/scalar_backend.h"

namespace sis {

std::vector<const Backend*> Backends() {
  static const ScalarBackend scalar;
  return {&scalar};
}

}  // namespace sis
