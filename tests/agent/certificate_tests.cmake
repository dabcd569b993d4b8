# The verbs that make certificates, on files; static libcrypto, since nothing here brings gRPC.
add_executable(certificate_authority_tests
  certificate_authority_test.cc ${CMAKE_SOURCE_DIR}/tests/support/test_certificates.cc)
target_link_libraries(certificate_authority_tests PRIVATE
  ivy_certificate_authority ivy_certificate ivy_agent_config OpenSSL::Crypto ${CMAKE_DL_LIBS}
  GTest::gtest_main)
gtest_discover_tests(certificate_authority_tests DISCOVERY_MODE PRE_TEST
                     PROPERTIES LABELS loopback TIMEOUT 60)
