# SPDX-License-Identifier: Apache-2.0
# The parts of ivy-pmix. tests/end_to_end/test_pmix.py tests the whole with real Open MPIs.
add_executable(pmix_parts_tests pmix_parts_test.cc)
target_link_libraries(pmix_parts_tests PRIVATE ivy_pmix
  ivy_handshake OpenSSL::Crypto GTest::gtest_main)
gtest_discover_tests(pmix_parts_tests DISCOVERY_MODE PRE_TEST PROPERTIES LABELS loopback TIMEOUT 60)
