// Leases shared memory and holds it until it is killed: segment_holder ADDRESS BYTES
#include <unistd.h>

#include <iostream>
#include <string>

#include "client/api/client.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto client = sis::Client::Connect(argv[1]);
  if (!client.ok()) return 1;
  const auto memory = (*client)->LeaseSharedMemory(std::stoul(argv[2]));
  if (!memory.ok()) {
    std::cerr << memory.status() << '\n';
    return 1;
  }
  std::cout << "ready" << std::endl;
  for (;;) pause();
}
