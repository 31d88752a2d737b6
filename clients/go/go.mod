module outbox

go 1.19
