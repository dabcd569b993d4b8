# SPDX-License-Identifier: Apache-2.0
# ivy-agent-cert, on files. Its certificates are verified as agents and launchers do, with the static libcrypto.
add_executable(certificate_script_tests certificate_script_test.cc)
target_link_libraries(certificate_script_tests PRIVATE
  ivy_test_certificates ivy_certificate ivy_agent_config OpenSSL::Crypto ${CMAKE_DL_LIBS}
  GTest::gtest_main)
target_compile_definitions(certificate_script_tests PRIVATE
  IVY_CERTIFICATE_SCRIPT="${CMAKE_SOURCE_DIR}/agent/daemon/ivy-agent-cert"
  IVY_OLD_AUTHORITY="${CMAKE_SOURCE_DIR}/tests/agent/authority-0.1.0")
gtest_discover_tests(certificate_script_tests DISCOVERY_MODE PRE_TEST
                     PROPERTIES LABELS loopback TIMEOUT 60)
