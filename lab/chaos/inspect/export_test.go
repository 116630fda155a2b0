package inspect

// RunningIn is for tests.
var RunningIn = runningIn
