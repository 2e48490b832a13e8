// The installed gRPC, Abseil and protobuf are not instrumented, so TSan does not see their locks.
// race_top: looks at the top frame only, so that races in our own handlers are still reported.
// Functions inlined from headers are matched by file, because stack traces show no namespaces.
// sis/v1 holds only generated code. Functions that the runtime intercepts count as the binary's,
// and races between libraries appear in them.
extern "C" const char* __tsan_default_suppressions() {
  return "race_top:libgrpc\n"
         "race_top:libgpr.so\n"
         "race_top:libabsl\n"
         "race_top:libprotobuf\n"
         "race_top:/usr/include/grpcpp/\n"
         "race_top:/usr/include/google/protobuf/\n"
         "race_top:/include/c++/\n"
         "race_top:sis/v1/\n"
         "race_top:^gmtime$\n"  // the date in CivetWeb's answers
         "race_top:^operator new\n"
         "race_top:^operator delete\n"
         "race_top:^malloc$\n"
         "race_top:^calloc$\n"
         "race_top:^realloc$\n"
         "race_top:^posix_memalign$\n"
         "race_top:^aligned_alloc$\n"
         "race_top:^free$\n"
         "race_top:^memcpy$\n"
         "race_top:^memmove$\n"
         "race_top:^memset$\n"
         "race_top:^memcmp$\n"
         "race_top:^memchr$\n"
         "race_top:^bcmp$\n"
         "race_top:^strlen$\n"
         "race_top:^read$\n"
         "race_top:^write$\n"
         "race_top:^recv$\n"
         "race_top:^recvmsg$\n"
         "race_top:^send$\n"
         "race_top:^sendmsg$\n"
         "race_top:^socket$\n"
         "race_top:^connect$\n"
         "race_top:^accept4$\n"
         "race_top:^close$\n"
         "race_top:^eventfd\n"
         "race_top:^epoll_\n";
}

// Without it TSan compares each race, suppressed or not, with the addresses of all races before it.
// A server that is given many small sequences has tens of thousands, and took minutes.
extern "C" const char* __tsan_default_options() { return "suppress_equal_addresses=0"; }
