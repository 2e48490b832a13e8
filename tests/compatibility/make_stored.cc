// Writes what this version stores, and what it reads of it, into a folder.
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <string>

#include "tests/compatibility/stored_fixture.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "make_stored FOLDER\n";
    return 2;
  }
  const std::string folder = argv[1];
  const sis::StoredItems items = sis::MakeItems();
  std::ofstream(folder + "/stored_items.base64") << sis::FileOf(items);
  std::ofstream(folder + "/stored_records.txt") << sis::Describe(items);
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}
