# SPDX-License-Identifier: Apache-2.0
# The front end of ivy-agent, with the tests' certificates and a small service behind it.
add_executable(agent_tests
  agent_acceptor_test.cc agent_parts_test.cc agent_process_test.cc agent_server_test.cc)
target_link_libraries(agent_tests PRIVATE ivy_test_certificates ivy_agent_shared GTest::gtest_main)
target_compile_definitions(agent_tests PRIVATE IVY_AGENT_BINARY="$<TARGET_FILE:ivy-agent>")
add_dependencies(agent_tests ivy-agent)
gtest_discover_tests(agent_tests DISCOVERY_MODE PRE_TEST PROPERTIES LABELS loopback TIMEOUT 120)
