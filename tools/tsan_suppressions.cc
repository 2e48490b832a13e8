// The installed gRPC, Abseil and protobuf are not instrumented, so TSan does not see their locks.
// race_top: looks at the top frame only, so that races in our own handlers are still reported.
// sis::v1 holds only what protoc generates. A bare "operator" would hide every race in a lambda.
extern "C" const char* __tsan_default_suppressions() {
  return "race_top:libgrpc\n"
         "race_top:libgpr.so\n"
         "race_top:libabsl\n"
         "race_top:libprotobuf\n"
         "race_top:libtsan\n"
         "race_top:^grpc::\n"
         "race_top:^google::protobuf::\n"
         "race_top: google::protobuf::internal::\n"
         "race_top:^std::\n"
         "race_top:^__gnu_cxx::\n"
         "race_top:^__interceptor_\n"
         "race_top:^operator new\n"
         "race_top:^operator delete\n"
         "race_top:^sis::v1::\n";
}

// Without it TSan compares each race, suppressed or not, with the addresses of all races before it.
// A server that is given many small sequences has tens of thousands, and took minutes.
extern "C" const char* __tsan_default_options() { return "suppress_equal_addresses=0"; }
