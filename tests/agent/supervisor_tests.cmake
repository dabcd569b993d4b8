# What the supervisor makes of it. Its pure parts need nothing; the rest drives a real ivy-node.
add_executable(supervisor_parts_tests
  devices_test.cc ending_test.cc lease_test.cc own_package_test.cc program_facts_test.cc rank_log_test.cc
  reserved_port_test.cc stack_ladder_test.cc worker_state_test.cc)
target_link_libraries(supervisor_parts_tests PRIVATE ivy_node_core GTest::gtest_main)
gtest_discover_tests(supervisor_parts_tests DISCOVERY_MODE PRE_TEST PROPERTIES LABELS pure)

add_executable(supervisor_tests
  supervisor_test.cc supervisor_carrier_test.cc supervisor_ending_test.cc
  supervisor_relay_test.cc supervisor_restart_test.cc
  ${CMAKE_SOURCE_DIR}/tests/support/fake_launcher.cc)
target_link_libraries(supervisor_tests PRIVATE ivy_node_core GTest::gtest_main)
target_compile_definitions(supervisor_tests PRIVATE IVY_NODE_BINARY="$<TARGET_FILE:ivy-node>")
add_dependencies(supervisor_tests ivy-node)
gtest_discover_tests(supervisor_tests DISCOVERY_MODE PRE_TEST
                     PROPERTIES LABELS loopback TIMEOUT 120)
